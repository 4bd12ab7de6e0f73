// Prefill attention by FlashInfer's Hopper kernel (TMA and wgmma), for head_dim 64 and 128 in bf16.
#include <algorithm>
// After the standard library: FlashInfer's headers.
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include "src/device/cuda_check.h"
#include "src/kernels/attention_library_cuda.h"

namespace mneme {
namespace {

using Bf16 = cutlass::bfloat16_t;
using Params = flashinfer::SinglePrefillParams<Bf16, Bf16, Bf16>;

bool device_is_hopper() {
  static const bool hopper = device_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
  return hopper;
}

template <int kDim>
void run(Params& params, cudaStream_t stream) {
  cuda_check(flashinfer::SinglePrefillWithKVCacheDispatched<kDim, kDim, flashinfer::MaskMode::kCausal, false,
                                                            flashinfer::StandardAttention>(params, stream),
             "prefill attention");
}

}  // namespace

namespace {

// Its kernel has two sizes of heads.
bool takes(std::int32_t head_dim) {
  return device_is_hopper() && (head_dim == 64 || head_dim == 128);
}

}  // namespace

std::int64_t LibraryAttention::bytes(std::int32_t n_kv_heads, std::int32_t head_dim, std::int64_t max_context) {
  return takes(head_dim) ? max_context * n_kv_heads * 4 * head_dim : 0;
}

void LibraryAttention::prepare(std::int32_t, const KvTables& tables, std::int64_t max_context) {
  if (takes(tables.head_dim) && !tables.f16)
    kv_ = DeviceBuffer(static_cast<std::size_t>(bytes(tables.n_kv_heads, tables.head_dim, max_context)),
                       "keys and values of one layer");
}

bool LibraryAttention::attend(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                              const CudaContext& context) {
  if (kv_.size() == 0 || !takes(tables.head_dim) || a.window > 0 || a.lse != nullptr || tables.masks != nullptr)
    return false;
  const std::int32_t n_tokens = a.first + a.n_rows;
  gather_kv_cuda(tables, layer, a.slot, n_tokens, kv_.data(), context);
  return attend_contiguous(a, tables, kv_.data(), n_tokens, context);
}

bool LibraryAttention::attend_contiguous(const PrefillAttentionCuda& a, const KvTables& tables, const std::byte* kv,
                                         std::int64_t tokens_a_head, const CudaContext& context) {
  if (!takes(tables.head_dim) || tables.f16 || a.window > 0 || a.lse != nullptr || tables.masks != nullptr)
    return false;
  auto* k = reinterpret_cast<Bf16*>(const_cast<std::byte*>(kv));
  const std::int64_t d = tables.head_dim;
  Params params{};
  params.q_ptr = static_cast<Bf16*>(const_cast<void*>(a.q));
  params.k_ptr = k;
  params.v_ptr = k + d;
  params.o_ptr = static_cast<Bf16*>(a.out);
  params.additional_params.sm_scale = a.scale;
  params.q_stride_n = params.o_stride_n = a.n_heads * d;
  params.q_stride_h = params.o_stride_h = d;
  params.k_stride_n = params.v_stride_n = 2 * d;
  params.k_stride_h = params.v_stride_h = 2 * d * tokens_a_head;
  params.qo_len = a.n_rows;
  params.kv_len = a.first + a.n_rows;
  params.num_qo_heads = a.n_heads;
  params.num_kv_heads = tables.n_kv_heads;
  params.group_size = a.n_heads / tables.n_kv_heads;
  params.window_left = -1;
  params.causal = true;
  tables.head_dim == 128 ? run<128>(params, context.stream) : run<64>(params, context.stream);
  return true;
}

}  // namespace mneme

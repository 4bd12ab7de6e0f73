// Prefill attention by FlashInfer's Hopper kernel (TMA and wgmma), for head_dim 64 and 128 in bf16.
#include <algorithm>
// After the standard library: FlashInfer's headers.
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include "src/base/backend.h"
#include "src/cuda/check.h"
#include "src/ops/attention/prefill/prefill_attention_cuda.h"

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

// The kernel supports two head sizes.
bool flashinfer_takes(std::int32_t head_dim) {
  return device_is_hopper() && (head_dim == 64 || head_dim == 128);
}

void attend_flashinfer(const PrefillAttentionCuda& a, const KvTables& tables, const std::byte* kv,
                       std::int64_t tokens_a_head, const CudaContext& context) {
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
}

}  // namespace

MNEME_REGISTER_BACKEND(flashinfer, PrefillLibrary, {.takes = &flashinfer_takes, .attend = &attend_flashinfer});

}  // namespace mneme

#include "src/ops/attention/prefill/prefill_attention_cuda.h"

#include "src/base/backend.h"
#include "src/cuda/check.h"
#include "src/cuda/device_runtime.h"

namespace mneme {
namespace {

constexpr std::int32_t kTileRows = 128;  // of the library

const PrefillLibrary* library_for(std::int32_t head_dim) {
  const PrefillLibrary* library = Backend<PrefillLibrary>::find();
  return library && library->takes(head_dim) ? library : nullptr;
}

std::int64_t layer_bytes(std::int32_t n_kv_heads, std::int32_t head_dim, std::int64_t max_context) {
  return library_for(head_dim) ? max_context * n_kv_heads * 4 * head_dim : 0;
}

}  // namespace

std::int32_t library_rows(std::int32_t n_rows, std::int32_t n_heads, std::int32_t n_sms) {
  const std::int32_t wave = n_sms / n_heads * kTileRows;
  if (wave == 0) return n_rows;
  const std::int32_t rest = n_rows % wave;
  return 2 * rest < wave ? n_rows - rest : n_rows;
}

std::int64_t PrefillAttention::bytes(std::int32_t n_kv_heads, std::int32_t head_dim, std::int64_t max_context,
                                     bool contiguous) {
  return static_cast<std::int64_t>(prefill_attention_scratch_bytes(head_dim)) +
         (contiguous ? 0 : layer_bytes(n_kv_heads, head_dim, max_context));
}

void PrefillAttention::prepare(const KvTables& tables, std::int64_t max_context, bool contiguous,
                               bool batch_invariant) {
  batch_invariant_ = batch_invariant;
  if (batch_invariant) return;
  scratch_ = DeviceBuffer(prefill_attention_scratch_bytes(tables.head_dim), "parts of prompts' attention");
  if (contiguous || tables.f16 || tables.codes != KvCodes::kNone || !library_for(tables.head_dim)) return;
  kv_ = DeviceBuffer(static_cast<std::size_t>(layer_bytes(tables.n_kv_heads, tables.head_dim, max_context)),
                     "keys and values of one layer");
}

std::int32_t PrefillAttention::by_library(const PrefillAttentionCuda& a, const KvTables& tables) {
  if (!library_for(tables.head_dim) || tables.f16 || a.window > 0 || a.lse != nullptr || tables.masks != nullptr)
    return 0;
  return library_rows(a.n_rows, a.n_heads, device_attribute(cudaDevAttrMultiProcessorCount));
}

void PrefillAttention::attend_rest(PrefillAttentionCuda a, const KvTables& tables, std::int32_t layer,
                                   std::int32_t done, const CudaContext& context) const {
  const std::int64_t values = std::int64_t{done} * a.n_heads * tables.head_dim;
  a.q = static_cast<const std::byte*>(a.q) + values * 2;
  a.out = static_cast<std::byte*>(a.out) + values * 2;
  a.first += done;
  a.n_rows -= done;
  a.scratch = scratch_.data();
  attend_prefill_cuda(a, tables, layer, context);
}

void PrefillAttention::attend(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                              const CudaContext& context) const {
  PrefillAttentionCuda first = a;
  first.n_rows = kv_.size() == 0 ? 0 : library_part(a, tables);
  if (first.n_rows > 0) {
    const std::int32_t n_tokens = a.first + first.n_rows;
    gather_kv_cuda(tables, layer, a.slot, n_tokens, n_tokens, kv_.data(), context);
    library_for(tables.head_dim)->attend(first, tables, kv_.data(), n_tokens, context);
  }
  attend_rest(a, tables, layer, first.n_rows, context);
}

void PrefillAttention::attend_contiguous(const PrefillAttentionCuda& a, const KvTables& tables, const std::byte* kv,
                                         std::int64_t tokens_a_head, const CudaContext& context) const {
  PrefillAttentionCuda first = a;
  first.n_rows = library_part(a, tables);
  if (first.n_rows > 0) library_for(tables.head_dim)->attend(first, tables, kv, tokens_a_head, context);
  attend_rest(a, tables, 0, first.n_rows, context);
}

}  // namespace mneme

#include "src/ops/attention/prefill/attention_library_cuda.h"

#include "src/base/backend.h"

namespace mneme {
namespace {

bool takes(std::int32_t head_dim) {
  const PrefillLibrary* library = Backend<PrefillLibrary>::find();
  return library && library->takes(head_dim);
}

}  // namespace

std::int64_t LibraryAttention::bytes(std::int32_t n_kv_heads, std::int32_t head_dim, std::int64_t max_context) {
  return takes(head_dim) ? max_context * n_kv_heads * 4 * head_dim : 0;
}

void LibraryAttention::prepare(std::int32_t, const KvTables& tables, std::int64_t max_context) {
  if (takes(tables.head_dim) && !tables.f16 && tables.codes == KvCodes::kNone)
    kv_ = DeviceBuffer(static_cast<std::size_t>(bytes(tables.n_kv_heads, tables.head_dim, max_context)),
                       "keys and values of one layer");
}

bool LibraryAttention::attend(const PrefillAttentionCuda& a, const KvTables& tables, std::int32_t layer,
                              const CudaContext& context) {
  if (kv_.size() == 0 || !takes(tables.head_dim) || a.window > 0 || a.lse != nullptr || tables.masks != nullptr)
    return false;
  const std::int32_t n_tokens = a.first + a.n_rows;
  gather_kv_cuda(tables, layer, a.slot, n_tokens, n_tokens, kv_.data(), context);
  return attend_contiguous(a, tables, kv_.data(), n_tokens, context);
}

bool LibraryAttention::attend_contiguous(const PrefillAttentionCuda& a, const KvTables& tables, const std::byte* kv,
                                         std::int64_t tokens_a_head, const CudaContext& context) {
  if (!takes(tables.head_dim) || tables.f16 || a.window > 0 || a.lse != nullptr || tables.masks != nullptr)
    return false;
  Backend<PrefillLibrary>::find()->attend(a, tables, kv, tokens_a_head, context);
  return true;
}

}  // namespace mneme

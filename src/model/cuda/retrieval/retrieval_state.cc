#include "src/model/cuda/retrieval/retrieval_state.h"

#include <algorithm>

#include "src/model/cuda/retrieval/own_pages.h"
#include "src/model/cuda/retrieval/unit_lists.h"

namespace mneme {
namespace {

bool attends_in_pages(const CudaRetrievalNeeds::Keys& keys, const CudaRetrievalOptions& options) {
  return options.pages_on_device && (keys.of_tokens() || keys.by_layer);
}

}  // namespace

RetrievalLayers::RetrievalLayers(const std::vector<bool>& dense) {
  std::int32_t n_dense = 0;
  for (const bool everything : dense) {
    numbers_.push_back(everything ? -1 - n_dense++ : n_selecting());
    if (!everything) selecting_.push_back(static_cast<std::int32_t>(numbers_.size()) - 1);
  }
  std::vector<std::int32_t> both = numbers_;
  both.insert(both.end(), selecting_.begin(), selecting_.end());
  const Stream stream = Stream::make();
  on_device_ = DeviceBuffer(both.size() * sizeof(std::int32_t), "numbers of layers");
  copy_bytes(on_device_.data(), both.data(), on_device_.size(), stream);
  stream.synchronize();
}

RetrievalState::RetrievalState(const KvShape& shape, std::int32_t n_heads, CudaRetrievalNeeds needs,
                               const CudaRetrievalOptions& options)
    : shape_(shape),
      options_(options),
      needs_(std::move(needs)),
      in_pages_(attends_in_pages(needs_.keys, options)),
      n_rows_((options.n_seq_slots + 7) / 8 * 8),
      layers_(needs_.dense) {
  const std::int32_t shared = needs_.keys.by_query_head ? n_heads / shape.n_kv_heads : 1;
  view_ = {.n_layers = n_selecting(),
           .n_seq_slots = options.n_seq_slots,
           .n_kv_heads = shape.n_kv_heads * shared,
           .n_heads = n_heads,
           .head_dim = shape.head_dim,
           .shared = shared,
           .unit_tokens = needs_.keys.of_tokens() ? 1 : kPageTokens,
           .n_slots = in_pages_ ? 0 : needs_.n_slots + options.more_slots,
           .max_pages = pages_of(options.max_context) + 1,  // selections cover one more token
           .max_listed = needs_.max_listed,
           .select_tokens = needs_.keys.select_tokens,
           .f16 = shape.dtype == DType::kF16,
           .codes = kv_codes_of(shape.dtype)};
  describe_index();
  expect_slots_cuda(view_);
}

void RetrievalState::describe_index() {
  const CudaRetrievalNeeds::Keys& keys = needs_.keys;
  UnitIndexes& index = view_.index;
  index.entries = keys.entries;
  if (closes()) index.entries.most = (view_.max_pages * kPageTokens + keys.entries.tokens - 1) / keys.entries.tokens;
  if (keys.list_tokens > 0) {
    index.lists.max_units = CudaUnitLists::most_units(keys.list_tokens, options_.max_context);
    index.lists.max_tokens = view_.max_pages * kPageTokens;
  }
  view_.selection.whole_attention = any(asks::weighs_attention);
}

}  // namespace mneme

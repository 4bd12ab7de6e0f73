#include "src/model/cuda/windows.h"

#include <algorithm>
#include <numeric>

#include "src/base/check.h"
#include "src/ops/norm_rope/rotate_keys_cuda.h"

namespace mneme {

CudaWindows::CudaWindows(const KvShape& shape, std::int32_t n_heads, const RopeTable& rope, std::int32_t max_rows,
                         std::int32_t max_sequences, std::int64_t max_context)
    : shape_(shape), n_heads_(n_heads), rope_(rope), max_context_(max_context) {
  // One row per window at least, and one more window per prompt where its budget ends.
  const auto n = static_cast<std::size_t>(max_rows + max_sequences);
  blocks_ = DeviceBuffer(n * sizeof(WindowBlock), "windows of prompts");
  host_blocks_ = PinnedBuffer(blocks_.size());
}

void CudaWindows::begin() {
  prompts_.clear();
  n_blocks_ = 0;
  if (selection_) selection_->begin();
}

std::int32_t CudaWindows::add(const SequenceCache& cache, MethodState& method, std::int32_t n_rows) {
  const Plan& plan = method.plan();
  Prompt p{.plan = &plan, .first = cache.length() - n_rows, .n_rows = n_rows, .first_block = n_blocks_};
  if (plan.layer_selection) {
    if (!selection_) selection_.emplace(shape_, n_heads_, max_context_);
    p.selects = selection_->add(method, p.first, n_rows);
  }
  auto* blocks = host_blocks_.as<WindowBlock>();
  std::int32_t number = 0;  // of the window
  for (std::int32_t begin = p.first; begin < cache.length();) {
    const WindowSpan w = window_at(plan, false, begin, cache.length());
    for (std::int32_t row = w.begin; row < w.end; row += kWindowBlockRows) {
      MNEME_CHECK(static_cast<std::size_t>(n_blocks_ + 1) * sizeof(WindowBlock) <= blocks_.size(), "too many windows");
      blocks[n_blocks_++] = {.row = row - p.first,
                             .n_rows = std::min(kWindowBlockRows, w.end - row),
                             .window = number,
                             .base = w.base,
                             .sinks = w.everything ? 0 : 1,
                             .middle = w.slides && w.keeps ? 1 : 0,
                             .slides = w.slides ? 1 : 0};
    }
    if (plan.layer_selection) selection_->add_window(w);
    ++number;
    const std::int32_t selected =
        w.everything || !plan.layer_selection ? 0 : region_at(plan.rules, w.begin + 1).select_tokens;
    for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
      const WindowSpan seen = plan.dense_layer(l) ? window_at(plan, true, w.begin, w.end) : w;
      LayerStats& stats = method.stats().layers[static_cast<std::size_t>(l)];
      const std::int64_t n = w.end - w.begin;
      stats.prefill_rows += shape_.n_kv_heads * n;
      stats.prefill_tokens += shape_.n_kv_heads * (n * (seen.sink + (seen.everything ? 0 : selected)) +
                                                   seen.local_tokens(plan.rules.recent));
    }
    begin = w.end;
  }
  p.n_blocks = n_blocks_ - p.first_block;
  prompts_.push_back(p);
  return static_cast<std::int32_t>(prompts_.size()) - 1;
}

void CudaWindows::send(const Stream& stream) {
  if (n_blocks_ > 0)
    copy_bytes(blocks_.data(), host_blocks_.data(), static_cast<std::size_t>(n_blocks_) * sizeof(WindowBlock), stream);
  if (selection_) selection_->send(stream);
}

CudaStaging::Earlier CudaWindows::earlier(std::int32_t prompt, std::int32_t layer, std::int32_t slot) const {
  const Prompt& p = prompts_[static_cast<std::size_t>(prompt)];
  const bool all = p.plan->dense_layer(layer) || p.first < p.plan->rules.budget;
  return {.layer = layer,
          .slot = slot,
          .head = p.plan->rules.sink,
          .from = all ? 0 : std::max(0, p.first - p.plan->rules.recent),
          .first = p.first};
}

// Rotates the local keys of the rows into a ring that holds all of a chunk's.
void CudaWindows::rotate_local(const Prompt& p, const PromptChunk& rows, const CudaContext& context) {
  const std::int32_t begin = std::max(0, p.first - p.plan->rules.recent + 1), end = p.first + p.n_rows;
  const std::int32_t pages = end / kPageTokens - begin / kPageTokens + 1;
  if (pages > rotated_tables_.max_pages) {
    const Stream stream = Stream::make();
    std::vector<std::int32_t> same(static_cast<std::size_t>(pages * shape_.n_kv_heads));
    std::iota(same.begin(), same.end(), 0);
    // Freeing waits for work that reads them.
    rotated_ = {}, rotated_blocks_ = {};
    rotated_ = DeviceBuffer(same.size() * shape_.page_bytes(), "rotated keys of one layer of a prompt");
    rotated_blocks_ = DeviceBuffer(same.size() * sizeof(std::int32_t), "tables of these");
    copy_bytes(rotated_blocks_.data(), same.data(), rotated_blocks_.size(), stream);
    if (inv_freq_.size() == 0) {
      inv_freq_ = DeviceBuffer(rope_.inv_freq.size() * sizeof(double), "frequencies");
      copy_bytes(inv_freq_.data(), rope_.inv_freq.data(), inv_freq_.size(), stream);
    }
    stream.synchronize();
    rotated_tables_ = {.base = rotated_.data(),
                       .blocks = rotated_blocks_.as<std::int32_t>(),
                       .sequence_stride = static_cast<std::int64_t>(same.size()),
                       .max_pages = pages,
                       .n_kv_heads = shape_.n_kv_heads,
                       .head_dim = shape_.head_dim,
                       .f16 = shape_.dtype == DType::kF16};
  }
  rotate_keys_cuda({.from = *rows.tables,
                    .to = rotated_tables_,
                    .from_slot = rows.slot,
                    .from_layer = rows.layer,
                    .begin = begin,
                    .end = end,
                    .ring = rotated_tables_.max_pages,
                    .inv_freq = inv_freq_.as<double>(),
                    .neighbours = rope_.pairs == RopePairs::kNeighbours},
                   context);
}

void CudaWindows::attend(std::int32_t prompt, const PromptChunk& rows, const CudaContext& context) {
  const Prompt& p = prompts_[static_cast<std::size_t>(prompt)];
  const bool pre_rope = p.plan->key_basis == KeyBasis::kPreRope;
  if (pre_rope) rotate_local(p, rows, context);
  const bool selects = p.selects >= 0 && !rows.dense;
  if (selects) {
    const CudaWindowSelection::Layer layer{.layer = rows.model_layer,
                                           .remote_q = rows.remote_q,
                                           .keys = rows.keys,
                                           .seq_slot = rows.seq_slot,
                                           .observer = rows.observer};
    selection_->select(p.selects, layer, context);
    if (rows.pages != nullptr)
      selection_->fetch(p.selects, layer, *rows.pages, *rows.tables,
                        earlier(prompt, rows.model_layer, rows.seq_slot).from / kPageTokens, context);
  }
  attend_windows_cuda({.q = rows.q,
                       .remote_q = rows.remote_q,
                       .out = rows.out,
                       .blocks = blocks_.as<WindowBlock>() + p.first_block,
                       .n_blocks = p.n_blocks,
                       .units = selects ? selection_->units() : nullptr,
                       .n_units = selects ? selection_->n_units() : nullptr,
                       .unit_stride = selects ? selection_->unit_stride() : 0,
                       .remote = *rows.tables,
                       .local = pre_rope ? rotated_tables_ : *rows.tables,
                       .remote_at = {rows.slot, rows.layer},
                       .local_at = pre_rope ? SlotOfTables{} : SlotOfTables{rows.slot, rows.layer},
                       .local_ring = pre_rope ? rotated_tables_.max_pages : 0,
                       .first = p.first,
                       .n_heads = n_heads_,
                       .sink = p.plan->rules.sink,
                       .recent = p.plan->rules.recent,
                       .dense = rows.dense,
                       .scale = rows.scale},
                      context);
}

}  // namespace mneme

// Attention of prompts: a chunk of a sequence's rows in its pages, or, with pages in host memory, in a staged copy of
// one layer.
#include <algorithm>

#include "src/model/cuda/attention.h"

namespace mneme {

// Prefill arguments of a span's rows, whose sequence is number `slot` of the attended tables.
PrefillAttentionCuda CudaAttention::prefill_of(std::int32_t layer, std::size_t span, std::int32_t slot,
                                               const Memory& m) {
  const Span& s = step_.spans[span];
  const std::int64_t at = std::int64_t{s.first_row} * q_width_ * 2, heads = model_.config().n_heads;
  float* const observed = mass_observer_->chunk_lse(span, layer);
  float* const own = m.sinks == nullptr ? nullptr : m.lse + s.first_row * heads;
  return {.q = m.q + at,
          .out = m.out + at,
          .lse = observed != nullptr ? observed : own,
          .slot = slot,
          .first = s.first_position,
          .n_rows = s.n_rows,
          .n_heads = static_cast<std::int32_t>(model_.config().n_heads),
          .window = window_of(layer),
          .scale = scale_};
}

// A prompt's rows by windows.
void CudaAttention::attend_prompt(std::int32_t layer, const Span& s, const LayerPages& from, const Memory& m,
                                  const CudaContext& context) {
  const std::int64_t at = std::int64_t{s.first_row} * q_width_ * 2;
  windows_->attend(s.prompt,
                   {.q = m.q + at,
                    .remote_q = s.method->plan().remote_position ? m.remote_q + at : m.q + at,
                    .out = m.out + at,
                    .tables = &from.tables,
                    .layer = from.layer,
                    .slot = from.slot,
                    .dense = s.method->plan().dense_layer(layer),
                    .scale = scale_,
                    .model_layer = layer,
                    .seq_slot = s.slot,
                    .keys = s.method->plan().layer_selection ? s.retrieval->layer_keys(layer) : LayerKeys{},
                    .pages = host_pages() ? &tables_->tables() : nullptr,
                    .observer = observer_},
                   context);
}

// Whether a layer reads a prompt in windows: attending everything with unrotated queries is full attention.
bool CudaAttention::in_windows(const Span& s, std::int32_t layer) const {
  return s.prompt >= 0 && (s.pre_rope_keys() || !s.method->plan().dense_layer(layer));
}

CudaRetrieval::Prompt CudaAttention::prompt_of(const Span& s) const {
  return {.cache = s.cache,
          .method = s.method,
          .seq_slot = s.slot,
          .first = s.first_position,
          .n = s.n_rows,
          .left = s.prefill_left};
}

void CudaAttention::chunk(std::int32_t layer, std::size_t span, const StepArrays& rows, const Memory& m,
                          const CudaContext& context, const Stream& stream) {
  const Span& s = step_.spans[span];
  const std::int64_t at = std::int64_t{s.first_row} * q_width_ * 2;
  QkvRows qkv = qkv_rows(s.first_row, s.n_rows, rows, m);
  qkv.pre_rope_keys = s.pre_rope_keys();
  const KvTables& tables = s.cache->dropped() ? tables_->ragged_tables() : tables_->tables();
  store_qkv_cuda(qkv, tables, layer, m.q + at, context);
  const LayerPages from = readable(s, {tables, layer, s.slot}, context);
  if (in_windows(s, layer)) return attend_prompt(layer, s, from, m, context);
  const PrefillAttentionCuda a = prefill_of(layer, span, from.slot, m);
  if (wide_) {
    prefill_.attend_contiguous(a, from.tables, wide_->data(), wide_->tokens_a_head(), context);
  } else {
    prefill_.attend(a, tables, layer, context);
  }
  add_sinks(m, a.out, a.lse, a.n_rows, context);
  const std::int32_t last = s.first_row + s.n_rows - 1;
  mass_observer_->take_chunk(span, layer,
                             {.q = a.q, .slot = wide_ ? nullptr : rows.slots + last, .length = rows.lengths + last},
                             from.tables, from.layer, stream);
  if (s.retrieval == nullptr || !s.retrieval->takes_prompts_in_pages()) return;
  CudaRetrieval::Prompt prompt = prompt_of(s);
  prompt.key_slot = s.slot, prompt.key_layer = layer;
  s.retrieval->take_prompt(prompt, layer, tables, stream);
}

// A prompt's tokens as its attention reads them.
LayerPages CudaAttention::readable(const Span& s, const LayerPages& stored, const CudaContext& context) const {
  if (!wide_) return stored;
  return {.tables = wide_->widen(stored, s.first_position + s.n_rows, context)};
}

// One layer of the sequence in the staging buffer; stored tokens are those of its page tables.
KvTables CudaAttention::staged(const Span& s, std::int32_t layer) const {
  if (!s.cache->dropped()) return staging_->tables();
  return with_holes_of({tables_->ragged_tables(), layer, s.slot}, staging_->tables());
}

CudaStaging::Earlier CudaAttention::earlier(const Span& s, std::int32_t layer) const {
  if (in_windows(s, layer)) return windows_->earlier(s.prompt, layer, s.slot);
  return {.layer = layer,
          .slot = s.slot,
          .first = s.first_position,
          .revision = s.cache->dropped() ? 0 : s.cache->revision()};
}

void CudaAttention::select_kept_prompt() {
  if (!staging_ || step_.chunks.empty()) return;
  std::vector<CudaStaging::Earlier> prompts;
  for (const std::size_t i : step_.chunks)
    if (step_.spans[i].prompt < 0) prompts.push_back(earlier(step_.spans[i], 0));
  staging_->select_prompt(prompts, options_.grow_slots ? &free_device_bytes : nullptr);
}

void CudaAttention::chunk_in_host_pages(std::int32_t layer, std::size_t span, const StepArrays& rows, const Memory& m,
                                        const CudaContext& context, const Stream& stream) {
  const auto chunk_of = [&](std::size_t i) -> const Span& { return step_.spans[step_.chunks[i]]; };
  const auto number =
      static_cast<std::size_t>(std::find(step_.chunks.begin(), step_.chunks.end(), span) - step_.chunks.begin());
  const Span& s = step_.spans[span];
  const KvTables& pages = this->pages();
  if (layer == 0 && number == 0) staging_->fetch(pages, earlier(s, 0), stream);
  staging_->begin(stream);
  const bool last_chunk = number + 1 == step_.chunks.size();
  const std::int32_t next_layer = last_chunk ? layer + 1 : layer;
  if (next_layer < shape_.n_layers)
    staging_->fetch(pages, earlier(chunk_of(last_chunk ? 0 : number + 1), next_layer), stream);

  const std::int64_t at = std::int64_t{s.first_row} * q_width_ * 2;
  QkvRows qkv = qkv_rows(s.first_row, s.n_rows, rows, m);
  qkv.slots = nullptr;  // the only sequence
  qkv.pre_rope_keys = s.pre_rope_keys();
  const KvTables there = staged(s, layer);
  store_qkv_cuda(qkv, there, 0, m.q + at, context);
  if (s.retrieval != nullptr)  // first: windows may already select from these pages
    s.retrieval->take_prompt(prompt_of(s), layer, there, stream);
  const LayerPages read = readable(s, {.tables = there}, context);
  const KvTables& from = read.tables;
  if (in_windows(s, layer)) {
    attend_prompt(layer, s, read, m, context);
  } else {
    const PrefillAttentionCuda a = prefill_of(layer, span, 0, m);
    prefill_.attend_contiguous(a, from, from.base, std::int64_t{from.max_pages} * kKvPageTokens, context);
    add_sinks(m, a.out, a.lse, a.n_rows, context);
    const std::int32_t last = s.first_row + s.n_rows - 1;
    mass_observer_->take_chunk(span, layer, {.q = a.q, .slot = nullptr, .length = rows.lengths + last}, from, 0,
                               stream);
  }
  staging_->end(pages, layer, s.slot, s.first_position, s.first_position + s.n_rows, stream);
  streams_.side_busy = true;
}

}  // namespace mneme

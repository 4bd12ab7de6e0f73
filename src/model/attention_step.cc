#include "src/model/attention_step.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

// Minimum tokens that a worker stores: fewer are faster without a hand-over.
constexpr std::int64_t kStoreGrain = 32;

}  // namespace

AttentionStep::AttentionStep(const ModelConfig& config, const RopeTable& rope, const CpuContext& context)
    : context_(context),
      decode_(context, rope),
      windows_(context, rope),
      prefill_end_(context),
      n_heads_(count32(config.n_heads)),
      n_kv_heads_(count32(config.n_kv_heads)) {
  for (std::int64_t l = 0; l < config.n_kv_layers(); ++l) windows_of_.push_back(count32(config.window_of(l)));
  shape_.group = count32(config.group());
  shape_.head_dim = count32(config.head_dim);
  shape_.scale = static_cast<float>(1.0 / std::sqrt(shape_.head_dim));
}

void AttentionStep::begin(std::span<const SequenceRows> sequences) {
  if (!sequences.empty()) sequences.front().cache->pool().end_step();  // the one before
  single_rows_.clear();
  chunks_.clear();
  windowed_.clear();
  key_positions_.clear();
  has_pre_rope_keys_ = false;
  cache_of_row_.clear();
  positions_.clear();
  for (const SequenceRows& s : sequences) {
    const std::int32_t first = s.cache->length() - s.n_rows;
    MNEME_CHECK(s.n_rows >= 0 && first >= 0, "{} rows of a sequence of {}", s.n_rows, s.cache->length());
    if (s.n_rows == 0) continue;
    MNEME_CHECK(positions_.empty() || s.cache->shape().dtype == shape_.kv_dtype, "one batch, two types of KV cache");
    shape_.kv_dtype = s.cache->shape().dtype;
    MNEME_CHECK(s.phase == SequencePhase::kPrefill || s.n_rows == 1, "{} rows of a sequence that decodes", s.n_rows);
    const Chunk chunk{s.cache, s.method, s.phase, std::ssize(positions_), first, s.n_rows, s.prefill_left};
    const bool windows =
        s.phase == SequencePhase::kPrefill && s.method != nullptr && s.method->plan().window.has_value();
    const bool pre_rope = s.cache->key_basis() == KeyBasis::kPreRope;
    MNEME_CHECK(!pre_rope || (s.method != nullptr && s.method->plan().key_basis == KeyBasis::kPreRope),
                "keys before RoPE, and a method that does not turn them");
    has_pre_rope_keys_ = has_pre_rope_keys_ || pre_rope;
    // Decode attention adds up in another order than prefill attention. Keys that k-means clusters must not depend on how
    // a prompt is cut into chunks, so a chunk of one row is prefill attention too.
    const bool clustered = s.phase == SequencePhase::kPrefill && s.method != nullptr && s.method->plan().lists;
    (windows ? windowed_ : s.n_rows == 1 && !clustered ? single_rows_ : chunks_).push_back(chunk);
    for (std::int32_t i = 0; i < s.n_rows; ++i) {
      cache_of_row_.push_back(s.cache);
      positions_.push_back(first + i);
      key_positions_.push_back(pre_rope ? 0 : first + i);
    }
  }
}

void AttentionStep::append(std::int32_t layer, const ConstTensorView& k, const ConstTensorView& v) {
  const std::int64_t n = positions_.size();
  expect_shape("k", k, DType::kF32, {n, n_kv_heads_, shape_.head_dim});
  expect_shape("v", v, DType::kF32, {n, n_kv_heads_, shape_.head_dim});
  context_.pool->parallel_for(n, kStoreGrain, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::size_t row = i;
      for (std::int32_t head = 0; head < n_kv_heads_; ++head) {
        const std::int64_t offset = std::int64_t{head} * shape_.head_dim;
        store_kv(k.row_as<float>(i) + offset, v.row_as<float>(i) + offset, shape_,
                 cache_of_row_[row]->token(layer, head, positions_[row]));
      }
    }
  });
}

void AttentionStep::attend(std::int32_t layer, const ConstTensorView& q, const TensorView& out, const float* sinks) {
  const std::int64_t n = positions_.size();
  expect_shape("q", q, DType::kF32, {n, n_heads_, shape_.head_dim});
  expect_shape("out", out, out.dtype(), {n, std::int64_t{n_heads_} * shape_.head_dim});
  window_ = windows_of_[layer];
  sinks_ = sinks;
  close_units(layer);
  scratch_.seen_rows.clear();
  scratch_.lse_used = 0;
  scratch_.lse.reserve(positions_.size() * n_heads_ * sizeof(float));
  if (!single_rows_.empty()) attend_single_rows(layer, q, out);
  // Rows of a method with windows of its own attend the model's window where a layer has one.
  if (window_ > 0) {
    attend_chunks(layer, windowed_, q, out);
  } else if (!windowed_.empty()) {
    attend_windows(layer, q, out);
  }
  attend_chunks(layer, chunks_, q, out);
  if (!scratch_.seen_rows.empty()) prefill_end_.run(layer, scratch_.seen_rows, shape_);
  if (!cache_of_row_.empty()) cache_of_row_.front()->pool().end_layer();  // one pool has all sequences
}

SeenTokens AttentionStep::seen_rows(const Chunk& chunk, const ConstTensorView& q, const float* lse) const {
  return {.cache = chunk.cache,
          .method = chunk.method,
          .n_rows = chunk.n_rows,
          .decodes = chunk.phase == SequencePhase::kDecode,
          .prefill_left = chunk.prefill_left,
          .q = q.row_as<float>(chunk.first_row),
          .q_stride = std::int64_t{n_heads_} * shape_.head_dim,
          .lse = lse};
}

float* AttentionStep::lse_of(std::int32_t layer, const Chunk& chunk) {
  if (!PrefillEnd::wants_lse(layer, {.method = chunk.method,
                                     .n_rows = chunk.n_rows,
                                     .decodes = chunk.phase == SequencePhase::kDecode,
                                     .prefill_left = chunk.prefill_left}))
    return nullptr;
  float* lse = scratch_.lse.as<float>() + scratch_.lse_used;
  scratch_.lse_used += std::int64_t{chunk.n_rows} * n_heads_;
  return lse;
}

void AttentionStep::attend_windows(std::int32_t layer, const ConstTensorView& q, const TensorView& out) {
  const std::int64_t width = std::int64_t{n_heads_} * shape_.head_dim;
  scratch_.window_rows.clear();
  for (const Chunk& chunk : windowed_)
    scratch_.window_rows.push_back({.cache = chunk.cache,
                                    .method = chunk.method,
                                    .q = q.row_as<float>(chunk.first_row),
                                    .q_stride = width,
                                    .out = out.row(chunk.first_row),
                                    .out_stride = width,
                                    .out_dtype = out.dtype(),
                                    .n_rows = chunk.n_rows,
                                    .sinks = sinks_});
  windows_.run(layer, scratch_.window_rows, shape_);
}

// Runs that the chunk's rows attend, including the rows themselves.
AttentionStep::RunRange AttentionStep::add_runs(const Chunk& chunk, std::int32_t layer, std::int32_t kv_head) {
  const std::size_t begin = scratch_.runs.size();
  const std::int32_t from = window_ > 0 ? std::max(0, chunk.first_position - window_ + 1) : 0;
  chunk.cache->append_runs(layer, kv_head, from, chunk.first_position + chunk.n_rows, scratch_.runs);
  return {begin, scratch_.runs.size() - begin};
}

// Index entries that a prompt's rows completed. Decode rows complete theirs when they attend.
void AttentionStep::close_units(std::int32_t layer) {
  scratch_.decode_rows.clear();
  for (const auto* list : {&single_rows_, &chunks_, &windowed_})
    for (const Chunk& chunk : *list)
      if (chunk.method != nullptr && chunk.phase == SequencePhase::kPrefill)
        scratch_.decode_rows.push_back(
            {.cache = chunk.cache, .method = chunk.method, .prefill_left = chunk.prefill_left});
  if (!scratch_.decode_rows.empty()) decode_.close_units(layer, scratch_.decode_rows);
}

void AttentionStep::attend_single_rows(std::int32_t layer, const ConstTensorView& q, const TensorView& out) {
  // The kernel writes f32; where the next GEMM takes bf16, rounding follows.
  const std::int64_t width = std::int64_t{n_heads_} * shape_.head_dim;
  const bool narrow = out.dtype() != DType::kF32;
  if (narrow) scratch_.decode_out.reserve(single_rows_.size() * width * sizeof(float));
  const auto out_row = [&](std::size_t i) {
    return narrow ? scratch_.decode_out.as<float>() + i * width : out.row_as<float>(single_rows_[i].first_row);
  };
  scratch_.decode_rows.clear();
  for (std::size_t i = 0; i < single_rows_.size(); ++i) {
    const Chunk& row = single_rows_[i];
    float* lse = lse_of(layer, row);
    if (lse != nullptr) scratch_.seen_rows.push_back(seen_rows(row, q, lse));
    scratch_.decode_rows.push_back({.cache = row.cache,
                                    .method = row.phase == SequencePhase::kDecode ? row.method : nullptr,
                                    .q = q.row_as<float>(row.first_row),
                                    .out = out_row(i),
                                    .window = window_,
                                    .sinks = sinks_,
                                    .lse = lse});
  }
  decode_.run(layer, scratch_.decode_rows, shape_);

  if (!narrow) return;
  for (std::size_t i = 0; i < single_rows_.size(); ++i) {
    const std::int64_t r = single_rows_[i].first_row;
    quantise_rows(view_of(out_row(i), {1, width}), out.rows(r, r + 1));
  }
}

void AttentionStep::attend_chunks(std::int32_t layer, std::span<const Chunk> chunks, const ConstTensorView& q,
                                  const TensorView& out) {
  if (chunks.empty()) return;
  scratch_.runs.clear();
  scratch_.ranges.clear();
  for (const Chunk& chunk : chunks)
    for (std::int32_t head = 0; head < n_kv_heads_; ++head) scratch_.ranges.push_back(add_runs(chunk, layer, head));

  scratch_.prefill_parts.resize(scratch_.ranges.size());
  scratch_.prefill_heads.resize(scratch_.ranges.size());
  const std::int64_t group_width = std::int64_t{shape_.group} * shape_.head_dim;
  const std::int64_t width = std::int64_t{n_heads_} * shape_.head_dim;
  std::size_t at = 0;
  for (const Chunk& chunk : chunks) {
    float* lse = lse_of(layer, chunk);
    if (lse != nullptr) scratch_.seen_rows.push_back(seen_rows(chunk, q, lse));
    for (std::int32_t head = 0; head < n_kv_heads_; ++head, ++at) {
      scratch_.prefill_parts[at] = {.q = q.row_as<float>(chunk.first_row) + head * group_width,
                                    .q_stride = width,
                                    .runs = runs(scratch_.ranges[at]),
                                    .causal = true,
                                    .window = window_};
      scratch_.prefill_heads[at] = {.parts = std::span(&scratch_.prefill_parts[at], 1),
                                    .n_rows = chunk.n_rows,
                                    .out = out.row(chunk.first_row) + row_bytes(out.dtype(), head * group_width),
                                    .out_stride = width,
                                    .out_dtype = out.dtype(),
                                    .lse = lse == nullptr ? nullptr : lse + head * chunk.n_rows * shape_.group,
                                    .sinks = sinks_ == nullptr ? nullptr : sinks_ + head * shape_.group};
    }
  }
  attend_prefill_cpu(scratch_.prefill_heads, shape_, context_);
}

std::size_t AttentionStep::scratch_bytes() const {
  const auto bytes = [](const auto& v) { return v.capacity() * sizeof(v[0]); };
  return bytes(single_rows_) + bytes(chunks_) + bytes(windowed_) + bytes(key_positions_) + bytes(scratch_.window_rows) +
         windows_.scratch_bytes() + bytes(cache_of_row_) + bytes(positions_) + bytes(scratch_.runs) +
         bytes(scratch_.ranges) + bytes(scratch_.decode_rows) + bytes(scratch_.prefill_parts) +
         bytes(scratch_.prefill_heads) + scratch_.lse.size() + scratch_.decode_out.size();
}

}  // namespace mneme

// Attention of one layer for all running sequences on the CPU: appends the new keys and values to the pages, then
// attends. Prompts use full attention, or windows where their method has them (src/methods/window_attention.h); decode
// rows go through their sequence's method (src/methods/decode_attention.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/methods/decode_attention.h"
#include "src/methods/prefill_end.h"
#include "src/methods/window_attention.h"
#include "src/model/model.h"
#include "src/tensor/buffer.h"

namespace mneme {

// Rows of all sequences are concatenated in the order of `sequences`.
class AttentionStep {
 public:
  AttentionStep(const ModelConfig& config, const RopeTable& rope, const CpuContext& context);

  // Sets the rows of the next calls. Requires  every cache is extended by its n_rows and lives until the next begin().
  void begin(std::span<const SequenceRows> sequences);
  std::span<const std::int32_t> positions() const { return positions_; }  // of every row
  // Position by which RoPE rotates each row's key: its own, or 0 where the sequence stores pre-RoPE keys.
  std::span<const std::int32_t> key_positions() const { return has_pre_rope_keys_ ? key_positions_ : positions_; }
  bool has_pre_rope_keys() const { return has_pre_rope_keys_; }

  // Stores the new rows in the caches' pages.   k, v [n, KV heads, D] f32, k rotated by key_positions().
  void append(std::int32_t layer, const ConstTensorView& k, const ConstTensorView& v);
  // q [n, heads, D] f32 post-RoPE; out [n, heads * D] f32 or bf16; sinks [heads], or null.
  void attend(std::int32_t layer, const ConstTensorView& q, const TensorView& out, const float* sinks = nullptr);
  // Builds the index entries that prompts' rows completed, as attend() does: for rows that are attended elsewhere.
  void close_units(std::int32_t layer);

  void set_audit(std::int32_t every) {
    decode_.set_audit(every);
    windows_.set_audit(every);
  }
  void set_observer(DecodeObserver* observer) { decode_.set_observer(observer); }
  std::size_t scratch_bytes() const;

 private:
  struct Chunk {  // the rows of one sequence
    const SequenceCache* cache;
    MethodState* method;
    SequencePhase phase;
    std::int64_t first_row;
    std::int32_t first_position, n_rows, prefill_left;
  };
  struct RunRange {  // in scratch_.runs
    std::size_t begin, count;
  };

  void attend_single_rows(std::int32_t layer, const ConstTensorView& q, const TensorView& out);
  void attend_windows(std::int32_t layer, const ConstTensorView& q, const TensorView& out);
  void attend_chunks(std::int32_t layer, std::span<const Chunk> chunks, const ConstTensorView& q,
                     const TensorView& out);
  SeenTokens seen_rows(const Chunk& chunk, const ConstTensorView& q, const float* lse) const;
  // Destination of the log-sum-exp of the chunk's rows, [KV heads, rows, G]; null: not needed.
  float* lse_of(std::int32_t layer, const Chunk& chunk);
  RunRange add_runs(const Chunk& chunk, std::int32_t layer, std::int32_t kv_head);
  std::span<const KvRun> runs(RunRange range) const {
    return std::span(scratch_.runs).subspan(range.begin, range.count);
  }

  CpuContext context_;
  DecodeAttention decode_;
  WindowAttention windows_;
  PrefillEnd prefill_end_;
  AttentionShape shape_;
  std::int32_t n_heads_, n_kv_heads_;
  std::vector<std::int32_t> windows_of_;  // by layer: the model's own; 0: none
  std::vector<Chunk> single_rows_, chunks_, windowed_;
  std::vector<const SequenceCache*> cache_of_row_;
  std::vector<std::int32_t> positions_, key_positions_;
  bool has_pre_rope_keys_ = false;
  std::int32_t window_ = 0;       // of the layer of this call
  const float* sinks_ = nullptr;  // the same

  // Refilled by every layer; they keep their memory.
  struct Scratch {
    std::vector<KvRun> runs;
    std::vector<RunRange> ranges;
    std::vector<DecodeRow> decode_rows;
    std::vector<WindowRows> window_rows;
    std::vector<PrefillPart> prefill_parts;
    std::vector<PrefillHead> prefill_heads;
    std::vector<SeenTokens> seen_rows;
    Buffer lse;
    std::size_t lse_used = 0;  // floats
    Buffer decode_out;         // f32 [single rows, heads * D], when `out` is bf16
  };
  Scratch scratch_;
};

}  // namespace mneme

// Windowed attention for prompt rows of a method with a prefill window, one layer: N rows at a time attend sinks, the
// units selected for them, and the tokens just before them. The GEMMs around it keep their large chunks.
//
// A row at position p of the window [w0, w1) attends, with S sinks and W recent tokens,
//
//     [0, S)  +  units selected for the window  +  [r, p]     with selection: r is region_at(w0 + 1).recent_from
//     [0, S)  +  (p - W, p]                                   without
//
// so with selection up to w1 - w0 - 1 tokens more than the budget, which become selectable once a later window starts.
// While a window ends within the budget its rows attend everything. Windows end at multiples of `rows` positions and at
// the budget, so neither chunks nor other sequences change what a row attends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/methods/layer_selector.h"
#include "src/methods/method_state.h"
#include "src/methods/positions/query_rotator.h"
#include "src/methods/prefill_windows.h"
#include "src/ops/attention/attention.h"
#include "src/ops/simd/cpu_context.h"
#include "src/tensor/buffer.h"

namespace mneme {

// Rows of one sequence: a chunk of its prompt.
struct WindowRows {
  const SequenceCache* cache = nullptr;  // the rows' own keys and values are its last tokens
  MethodState* method = nullptr;         // its plan has a prefill window
  const float* q = nullptr;              // row i: q + i * q_stride, [n_heads, D] post-RoPE
  std::int64_t q_stride = 0;
  std::byte* out = nullptr;  // row i: element i * out_stride
  std::int64_t out_stride = 0;
  DType out_dtype = DType::kF32;  // or kBF16
  std::int32_t n_rows = 0;
  const float* sinks = nullptr;  // [n_heads]; null: none

  std::int32_t first() const { return cache->length() - n_rows; }
};

class WindowAttention {
 public:
  WindowAttention(const CpuContext& context, const RopeTable& rope)
      : context_(context), rope_(rope), selector_(context) {}

  // Every n-th window with a selection also compares its scores with the true attention; 0: never.
  void set_audit(std::int32_t every) { audit_every_ = every; }
  // The chunks of a step; call with the same order for every layer.
  void run(std::int32_t layer, std::span<const WindowRows> chunks, const AttentionShape& shape);

  std::size_t scratch_bytes() const;

 private:
  // State of a chunk: shared by its layers, and working memory of the current layer.
  struct Chunk {
    explicit Chunk(const RopeTable& rope) : remote(rope) {}
    QueryRotator remote;
    std::vector<QueryRotator::Rotation> remote_rows;
    const float* remote_q = nullptr;  // [rows, n_heads * D]; null: no remapped positions
    RopeAngles local_angles;          // of positions [local_from, end)
    std::int32_t local_from = 0, local_end = 0;
    Buffer local;  // [KV heads][local_end - local_from] of [K | V], keys rotated
  };
  struct RunRange {
    std::size_t begin = 0, count = 0;
  };
  struct Window : WindowSpan {
    const WindowRows* rows = nullptr;
    const Chunk* chunk = nullptr;
  };

  void rotate_chunk(std::int32_t layer, const WindowRows& rows, const AttentionShape& shape, Chunk& chunk);
  void select(std::int32_t layer, const Window& window, const AttentionShape& shape);
  void learn(std::int32_t layer, const Window& window, const AttentionShape& shape);
  static ProbeQueries probe_rows(const Window& window, const AttentionShape& shape);
  void append_local(std::int32_t layer, const Window& window, std::int32_t kv_head, std::int32_t from,
                    const AttentionShape& shape, std::vector<KvRun>& runs) const;
  float* lse(std::int32_t kv_head, const Window& window, const AttentionShape& shape);
  void add_window(std::int32_t layer, const Window& window, const AttentionShape& shape);
  void add_part(const float* q, std::int64_t q_stride, std::size_t first_run, bool causal, std::int32_t window);
  void flush(const AttentionShape& shape);

  CpuContext context_;
  std::int32_t audit_every_ = 0;
  RopeTable rope_;
  LayerSelector selector_;
  std::vector<float> lse_;  // of a window with a selection: [KV heads, rows, G]
  std::vector<std::vector<KvRun>> local_runs_;
  std::vector<std::span<const KvRun>> local_spans_;
  std::vector<Chunk> chunks_;
  // Memory of heads that are gathered and not yet attended.
  std::vector<KvRun> runs_;
  std::vector<PrefillPart> parts_;
  std::vector<RunRange> part_runs_;   // by part, in runs_
  std::vector<RunRange> head_parts_;  // by head, in parts_
  std::vector<PrefillHead> heads_;
};

}  // namespace mneme

// End of a prefill, and over-budget steps after it: observes the rows of every pass, layer by layer, and decides which
// tokens to keep and how large a layer's budget is.
//
// Decisions are pending in the sequence's MethodState until its commit().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/methods/drop_decider.h"
#include "src/methods/method_state.h"
#include "src/ops/simd/cpu_context.h"

namespace mneme {

// Consecutive rows of one sequence, with keys stored and attention computed.
struct SeenTokens {
  const SequenceCache* cache = nullptr;  // the rows' own tokens are its last
  MethodState* method = nullptr;         // null: not observed
  std::int32_t n_rows = 0;
  bool decodes = false;           // false: rows of a prefill
  std::int32_t prefill_left = 0;  // prefill rows after these; 0: the prefill ends with them
  const float* q = nullptr;       // row i: q + i * q_stride, [n_heads, D] post-RoPE
  std::int64_t q_stride = 0;
  const float* lse = nullptr;  // [n_kv_heads, n_rows, G] of their attention; read only where wants_lse()
};

class PrefillEnd {
 public:
  explicit PrefillEnd(const CpuContext& context) : context_(context) {}

  static bool wants_lse(std::int32_t layer, const SeenTokens& rows);
  void run(std::int32_t layer, std::span<const SeenTokens> rows, const AttentionShape& shape);

 private:
  void sum_all_rows(std::int32_t layer, const SeenTokens& rows, const AttentionShape& shape);
  void save_rows(std::int32_t layer, const SeenTokens& rows, const AttentionShape& shape);
  void take_mass(std::int32_t layer, const SeenTokens& rows, const AttentionShape& shape);
  void take_moments(std::int32_t layer, const SeenTokens& rows, const AttentionShape& shape);

  CpuContext context_;
  DropDecider decider_;
  LayerMass mass_;  // of the current sequence, by query head
  std::vector<float> row_mass_;
  std::vector<KvRun> runs_;
  std::vector<std::size_t> first_run_;
};

}  // namespace mneme

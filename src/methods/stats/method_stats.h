// Statistics of a method for one sequence, per layer; consumers sum them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mneme {

// Comparisons with the true attention; sums.
struct AuditSums {
  std::int64_t samples = 0;  // audited (step, selection head) pairs
  double recall = 0, mass = 0, error = 0;
  std::int64_t windows = 0;  // audited prefill windows that selected
  double rank = 0;           // of these: the rank correlation of scores with attention
};

// Tokens that stay in the cache, by KV head.
struct Retention {
  // Ends of prefills, summed over these and KV heads: `kept_tokens` of `prompt_tokens` stored (or, with a norm budget
  // and no drop, the budget).
  std::int64_t prefill_ends = 0, kept_tokens = 0, prompt_tokens = 0;
  std::int64_t dropped_tokens = 0;  // at the ends of prefills and while decoding
};

struct LayerStats {
  // Windowed prefill: prompt rows and the tokens they attended, summed over KV heads.
  std::int64_t prefill_rows = 0, prefill_tokens = 0;
  // Selections for a whole layer, in prefill and decode: number that scored two or more units, and sums of the
  // perplexity of softmax(scores) and of its entropy, each relative to even scores.
  std::int64_t scored = 0;
  double score_perplexity = 0, score_entropy = 0;
  std::int64_t steps = 0;            // decode steps of this layer
  std::int64_t sparse_steps = 0;     // steps that selected, reused a selection, or attended only a window
  std::int64_t attended_tokens = 0;  // exact keys and values read, summed over steps and selection heads
  std::int64_t attended_heads = 0;  // (step, selection head) pairs: attended_tokens / attended_heads is the budget used
  std::int64_t index_bytes_read = 0;
  std::int64_t selections = 0;  // attended selections made with this step's query, by head
  std::int64_t reused = 0;      // attended selections made at an earlier step, by head
  // Gate evaluations and flags, by KV head; one count per layer where the gate is evaluated once per layer.
  std::vector<std::int64_t> gate_checks, corrections;
  // Turnover: replaced_units were not attended by the previous step.
  std::int64_t selected_units = 0, replaced_units = 0;
  // Selected units that were not in the device cache, and units that were fetched from another memory tier.
  std::int64_t missing_units = 0, recalled_units = 0;
  Retention retention;
  AuditSums audit;
};

struct MethodStats {
  std::vector<LayerStats> layers;
  double prefill_end_seconds = 0;  // time of decisions and drops at the ends of prefills
};

// Device memory of methods beside the pages: cache slots, index, and full copies of dense layers.
struct MethodMemory {
  std::size_t slots = 0, index = 0, dense_layers = 0;
};

// Adds b's counts to a's.
void add_audits(AuditSums& a, const AuditSums& b);

}  // namespace mneme

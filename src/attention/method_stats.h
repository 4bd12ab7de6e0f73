// What a method did for one sequence: counted per layer, summed by whoever prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mneme {

struct LayerStats {
  // A windowed prefill: rows of prompts and what they attended, summed over KV heads.
  std::int64_t prefill_rows = 0, prefill_tokens = 0;
  // Decisions for a whole layer, in prefill and decode: how many scored two units or more, and sums over those of how
  // evenly: perplexity of softmax(scores) and its entropy, each as a share of what even scores have.
  std::int64_t scored = 0;
  double score_perplexity = 0, score_entropy = 0;
  std::int64_t steps = 0;            // decode steps of this layer
  std::int64_t sparse_steps = 0;     // of those, steps that selected or reused a selection, or attended a window alone
  std::int64_t attended_tokens = 0;  // exact keys and values read, summed over steps and selection heads
  std::int64_t attended_heads =
      0;  // how many (step, selection head) pairs that was: attended_tokens / attended_heads is the achieved budget
  std::int64_t index_bytes_read = 0;
  std::int64_t selections = 0;  // attended selections made with this step's query, by head
  std::int64_t reused = 0;      // attended selections made at an earlier step, by head
  std::vector<std::int64_t> gate_checks,
      corrections;  // the gate asked, and the gate flagged; by KV head, or one count a layer where it is asked once
  std::int64_t selected_units = 0,
               replaced_units = 0;  // turnover: units attended that the step before did not attend, of all selected
  // Chosen units that had to be brought from another tier of memory, and all that were brought: neighbours too, where
  // a method asks for them.
  std::int64_t missing_units = 0, recalled_units = 0;
  // What the ends of prefills kept, summed over them and over KV heads: of `prompt_tokens` stored, `kept_tokens` (or,
  // with a budget that the prompt sets and nothing dropped, how many the budget is).
  std::int64_t prefill_ends = 0, kept_tokens = 0, prompt_tokens = 0;
  std::int64_t dropped_tokens = 0;  // then and while decoding, by KV head
  // Audit, sums over audited (step, selection head) pairs.
  std::int64_t audits = 0;
  double audit_recall = 0, audit_mass = 0, audit_error = 0;
  // Audited windows of prefill that selected: sums of the rank correlation of scores with attention.
  std::int64_t rank_audits = 0;
  double audit_rank = 0;
};

struct MethodStats {
  std::vector<LayerStats> layers;
  double prefill_end_seconds = 0;  // spent to decide and to drop when prefills ended
};

// Device memory of methods beside the pages: copies of those that are selected, what scores them, and the whole of the
// layers that read everything.
struct MethodMemory {
  std::size_t slots = 0, index = 0, dense_layers = 0;
};

// Adds b's counts to a's. Requires  the same number of layers, or a empty.
void add_stats(MethodStats& a, const MethodStats& b);

}  // namespace mneme

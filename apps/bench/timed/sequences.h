// Sequences that a benchmark steps through, and what their methods counted.
#pragma once

#include <memory>
#include <vector>

#include "apps/bench/timed/bench.h"
#include "src/base/rng.h"

namespace mneme {

// Counts of methods, summed over sequences and layers: LayerStats.
struct MethodReads {
  std::int64_t attended_tokens = 0, attended_heads = 0, index_bytes = 0;
  std::int64_t selections = 0, reused = 0;
  std::int64_t selected_units = 0, missing_units = 0, recalled_units = 0;
  std::int64_t gate_checks = 0, corrections = 0;

  // What was counted since `before`.
  MethodReads since(const MethodReads& before) const;
};

struct BenchSequences {
  std::unique_ptr<PagePool> pool;  // of the caches; null where they have another's
  std::vector<SequenceCache> caches;
  std::vector<MethodState> methods;  // empty, or one a cache
  std::vector<SequenceRows> rows;
  std::vector<std::int32_t> tokens;

  // Makes c.batch empty sequences with pages of `from`. Requires  there are none.
  void make(PagePool& from, const BenchCase& c);
  // Empties caches and methods.
  void restart(const BenchCase& c);
  // Draws n random tokens for every sequence.
  void draw_tokens(std::int32_t n, std::int64_t vocab, Rng& rng);
  // Makes room for n tokens in every cache and sets its rows, before the forward pass; `prefill_left` of the prompt are
  // still to come.
  void extend(std::int32_t n, bool want_logits, std::int32_t prefill_left);
  // Commits the step to the methods, after the forward pass.
  void commit();

  MethodReads reads() const;
  double prefill_end_seconds() const;  // of all sequences
};

}  // namespace mneme

#include "apps/bench/timed/sequences.h"

#include "src/base/size32.h"

namespace mneme {

MethodReads MethodReads::since(const MethodReads& before) const {
  return {.attended_tokens = attended_tokens - before.attended_tokens,
          .attended_heads = attended_heads - before.attended_heads,
          .index_bytes = index_bytes - before.index_bytes,
          .selections = selections - before.selections,
          .reused = reused - before.reused,
          .selected_units = selected_units - before.selected_units,
          .missing_units = missing_units - before.missing_units,
          .recalled_units = recalled_units - before.recalled_units,
          .gate_checks = gate_checks - before.gate_checks,
          .corrections = corrections - before.corrections};
}

void BenchSequences::make(PagePool& from, const BenchCase& c) {
  for (std::int32_t i = 0; i < c.batch; ++i) {
    caches.emplace_back(from);
    if (c.plan == nullptr) continue;
    caches.back().set_key_basis(c.plan->key_basis);
    methods.emplace_back(c.plan);
  }
  for (std::size_t i = 0; i < caches.size(); ++i)
    rows.push_back({.cache = &caches[i], .method = methods.empty() ? nullptr : &methods[i]});
}

void BenchSequences::restart(const BenchCase& c) {
  for (SequenceCache& cache : caches) cache.clear();
  for (MethodState& m : methods) m = MethodState(c.plan);
}

void BenchSequences::draw_tokens(std::int32_t n, std::int64_t vocab, Rng& rng) {
  tokens.resize(caches.size() * n);
  for (std::int32_t& t : tokens) t = count32(rng.below(vocab));
}

void BenchSequences::extend(std::int32_t n, bool want_logits, std::int32_t prefill_left) {
  for (std::size_t i = 0; i < caches.size(); ++i) {
    caches[i].extend(n);
    rows[i].n_rows = n;
    rows[i].want_logits = want_logits;
    rows[i].prefill_left = prefill_left;
  }
}

void BenchSequences::commit() {
  for (std::size_t i = 0; i < methods.size(); ++i) methods[i].commit(caches[i]);
}

MethodReads BenchSequences::reads() const {
  MethodReads r;
  for (const MethodState& m : methods)
    for (const LayerStats& l : m.stats().layers) {
      r.attended_tokens += l.attended_tokens;
      r.attended_heads += l.attended_heads;
      r.index_bytes += l.index_bytes_read;
      r.selections += l.selections;
      r.reused += l.reused;
      r.selected_units += l.selected_units;
      r.missing_units += l.missing_units;
      r.recalled_units += l.recalled_units;
      for (const std::int64_t n : l.gate_checks) r.gate_checks += n;
      for (const std::int64_t n : l.corrections) r.corrections += n;
    }
  return r;
}

double BenchSequences::prefill_end_seconds() const {
  double seconds = 0;
  for (const MethodState& m : methods) seconds += m.stats().prefill_end_seconds;
  return seconds;
}

}  // namespace mneme

#include "src/methods/stats/method_stats.h"

#include "src/base/check.h"

namespace mneme {
namespace {

void add(std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  if (a.size() < b.size()) a.resize(b.size(), 0);
  for (std::size_t i = 0; i < b.size(); ++i) a[i] += b[i];
}

void add_retention(Retention& a, const Retention& b) {
  a.prefill_ends += b.prefill_ends;
  a.kept_tokens += b.kept_tokens;
  a.prompt_tokens += b.prompt_tokens;
  a.dropped_tokens += b.dropped_tokens;
}

}  // namespace

void add_audits(AuditSums& a, const AuditSums& b) {
  a.samples += b.samples;
  a.recall += b.recall;
  a.mass += b.mass;
  a.error += b.error;
  a.windows += b.windows;
  a.rank += b.rank;
}

void add_stats(MethodStats& a, const MethodStats& b) {
  if (a.layers.empty()) a.layers.resize(b.layers.size());
  MNEME_CHECK(a.layers.size() == b.layers.size(), "statistics of {} and {} layers", a.layers.size(), b.layers.size());
  a.prefill_end_seconds += b.prefill_end_seconds;
  for (std::size_t i = 0; i < b.layers.size(); ++i) {
    LayerStats& x = a.layers[i];
    const LayerStats& y = b.layers[i];
    x.prefill_rows += y.prefill_rows;
    x.prefill_tokens += y.prefill_tokens;
    x.scored += y.scored;
    x.score_perplexity += y.score_perplexity;
    x.score_entropy += y.score_entropy;
    x.steps += y.steps;
    x.sparse_steps += y.sparse_steps;
    x.attended_tokens += y.attended_tokens;
    x.attended_heads += y.attended_heads;
    x.index_bytes_read += y.index_bytes_read;
    x.selections += y.selections;
    x.reused += y.reused;
    add(x.gate_checks, y.gate_checks);
    add(x.corrections, y.corrections);
    x.selected_units += y.selected_units;
    x.replaced_units += y.replaced_units;
    x.missing_units += y.missing_units;
    x.recalled_units += y.recalled_units;
    add_retention(x.retention, y.retention);
    add_audits(x.audit, y.audit);
  }
}

}  // namespace mneme

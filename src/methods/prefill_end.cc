#include "src/methods/prefill_end.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "src/base/check.h"
#include "src/base/seconds.h"
#include "src/selection/mass/attention_mass.h"

namespace mneme {

namespace {

// A row's attention to the tokens of query head h, laid out as `mass`.
void add_moments(std::span<const float> row, std::int32_t h, std::int32_t recent, LayerMass& mass) {
  const std::size_t first = mass.first[h], n = mass.length[h], ranked = n - std::min<std::size_t>(n, recent);
  for (std::size_t t = 0; t < n; ++t) {
    const float a = row[first + t];
    mass.values[first + t] += a;
    mass.squares[first + t] += a * a;
    if (t < ranked) mass.entropy -= double{a} * std::log(double{a} + 1e-10);
  }
}

}  // namespace

bool PrefillEnd::wants_lse(std::int32_t layer, const SeenTokens& rows) {
  if (rows.method == nullptr || rows.n_rows == 0) return false;
  const Plan& plan = rows.method->plan();
  const std::int32_t n = plan.observed_rows;
  if (n == 0 || !plan.compressed(layer)) return false;
  if (n == Plan::kAllRows) return true;
  if (rows.decodes) return DropDecider::each_step(plan);
  return rows.prefill_left < n;
}

void PrefillEnd::run(std::int32_t layer, std::span<const SeenTokens> all, const AttentionShape& shape) {
  for (const SeenTokens& rows : all) {
    if (!wants_lse(layer, rows)) continue;
    const auto start = std::chrono::steady_clock::now();
    const Plan& plan = rows.method->plan();
    if (plan.observed_rows == Plan::kAllRows) {
      sum_all_rows(layer, rows, shape);
    } else {
      save_rows(layer, rows, shape);
    }
    if (rows.decodes ? DropDecider::each_step(plan) : rows.prefill_left == 0) {
      mass_.clear();
      if (DropDecider::needs_mass(layer, *rows.cache, plan))
        DropDecider::needs_moments(plan) ? take_moments(layer, rows, shape) : take_mass(layer, rows, shape);
      decider_.decide(layer,
                      {.cache = rows.cache,
                       .method = rows.method,
                       .decodes = rows.decodes,
                       .observed = rows.method->layer(layer).observed_queries.n,
                       .suffix = {}},
                      mass_);
    }
    if (!rows.decodes) rows.method->stats().prefill_end_seconds += seconds_since(start);
  }
}

// Adds these rows' share to every head's mass.
void PrefillEnd::sum_all_rows(std::int32_t layer, const SeenTokens& rows, const AttentionShape& shape) {
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads;
  state.pending.mass.resize(n_kv);
  std::vector<MassHead> heads;
  runs_.clear();
  first_run_.assign(1, 0);
  for (std::int32_t m = 0; m < n_kv; ++m) {
    rows.cache->append_runs(layer, m, 0, rows.cache->length(), runs_);
    first_run_.push_back(runs_.size());
  }
  for (std::int32_t m = 0; m < n_kv; ++m) {
    const std::size_t h = m;
    const std::size_t n = rows.cache->n_stored(layer, m), before = n - rows.n_rows;
    std::vector<float>& mass = state.pending.mass[h];
    // Tokens stored before the method was attached have received no mass.
    mass.assign(n, 0.0f);
    std::copy_n(state.mass[h].begin(), std::min(before, state.mass[h].size()), mass.begin());
    heads.push_back({.q = rows.q + std::int64_t{m} * shape.group * shape.head_dim,
                     .q_stride = rows.q_stride,
                     .lse = rows.lse + std::int64_t{m} * rows.n_rows * shape.group,
                     .lse_stride = shape.group,
                     .n_rows = rows.n_rows,
                     .runs = std::span(runs_).subspan(first_run_[h], first_run_[h + 1] - first_run_[h]),
                     .mass = mass.data(),
                     .mass_stride = static_cast<std::int64_t>(n)});
  }
  attention_mass_cpu(heads, shape, MassBy::kGroup, context_);
}

// The last rows may arrive in several passes: passes are contiguous, and a repeated pass overwrites its rows.
void PrefillEnd::save_rows(std::int32_t layer, const SeenTokens& rows, const AttentionShape& shape) {
  MethodState::ObservedQueries& observed_queries = rows.method->layer(layer).observed_queries;
  const std::int32_t wanted = rows.decodes ? 1 : rows.method->plan().observed_rows - rows.prefill_left;
  const std::int32_t n = std::min(rows.n_rows, wanted), begin = rows.cache->length() - rows.n_rows;
  observed_queries.n = rows.decodes || n < rows.n_rows ? 0 : observed_queries.before(begin);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n_heads = n_kv * shape.group;
  const std::int64_t width = std::int64_t{n_heads} * shape.head_dim;
  observed_queries.q.resize((observed_queries.n + n) * width);
  observed_queries.lse.resize((observed_queries.n + n) * n_heads);
  for (std::int32_t i = rows.n_rows - n; i < rows.n_rows; ++i, ++observed_queries.n) {
    std::copy_n(rows.q + i * rows.q_stride, width, observed_queries.q.begin() + observed_queries.n * width);
    for (std::int32_t m = 0; m < n_kv; ++m)
      std::copy_n(rows.lse + (std::int64_t{m} * rows.n_rows + i) * shape.group, shape.group,
                  observed_queries.lse.begin() + observed_queries.n * n_heads + m * shape.group);
  }
  observed_queries.end = rows.cache->length();
}

// mass_: from the saved rows to every stored token, one row per query head.
void PrefillEnd::take_mass(std::int32_t layer, const SeenTokens& rows, const AttentionShape& shape) {
  const MethodState::ObservedQueries& observed_queries = rows.method->layer(layer).observed_queries;
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n_heads = n_kv * shape.group;
  runs_.clear();
  first_run_.assign(1, 0);
  mass_.by = LayerMass::By::kQueryHead;
  for (std::int32_t m = 0; m < n_kv; ++m) {
    const std::size_t n = rows.cache->append_runs(layer, m, 0, rows.cache->length(), runs_);
    first_run_.push_back(runs_.size());
    for (std::int32_t g = 0; g < shape.group; ++g) mass_.add_row(n);
  }
  std::vector<MassHead> heads;
  for (std::int32_t m = 0; m < n_kv; ++m) {
    const std::size_t h = m, first = m * shape.group;
    heads.push_back({.q = observed_queries.q.data() + std::int64_t{m} * shape.group * shape.head_dim,
                     .q_stride = std::int64_t{n_heads} * shape.head_dim,
                     .lse = observed_queries.lse.data() + std::int64_t{m} * shape.group,
                     .lse_stride = n_heads,
                     .n_rows = observed_queries.n,
                     .runs = std::span(runs_).subspan(first_run_[h], first_run_[h + 1] - first_run_[h]),
                     .mass = mass_.values.data() + mass_.first[first],
                     .mass_stride = static_cast<std::int64_t>(mass_.length[first])});
  }
  attention_mass_cpu(heads, shape, MassBy::kQueryHead, context_);
}

// The same row by row, with the sums of squares, and the entropy over the tokens before the window.
void PrefillEnd::take_moments(std::int32_t layer, const SeenTokens& rows, const AttentionShape& shape) {
  const MethodState::ObservedQueries& seen = rows.method->layer(layer).observed_queries;
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n_heads = n_kv * shape.group,
                     recent = rows.method->plan().drop->recent;
  mass_.by = LayerMass::By::kQueryHead;
  for (std::int32_t h = 0; h < n_heads; ++h) mass_.add_row(rows.cache->n_stored(layer, h / shape.group));
  mass_.squares.assign(mass_.values.size(), 0.0f);
  for (std::int32_t i = 0; i < seen.n; ++i) {
    row_mass_.assign(mass_.values.size(), 0.0f);
    runs_.clear();
    first_run_.assign(1, 0);
    for (std::int32_t m = 0; m < n_kv; ++m) {
      rows.cache->append_runs(layer, m, 0, rows.cache->length() - (seen.n - 1 - i), runs_);
      first_run_.push_back(runs_.size());
    }
    std::vector<MassHead> heads;
    for (std::int32_t m = 0; m < n_kv; ++m) {
      const std::size_t first = mass_.first[m * shape.group];
      heads.push_back({.q = seen.q.data() + (std::int64_t{i} * n_heads + m * shape.group) * shape.head_dim,
                       .q_stride = std::int64_t{n_heads} * shape.head_dim,
                       .lse = seen.lse.data() + std::int64_t{i} * n_heads + m * shape.group,
                       .lse_stride = n_heads,
                       .n_rows = 1,
                       .runs = std::span(runs_).subspan(first_run_[m], first_run_[m + 1] - first_run_[m]),
                       .mass = row_mass_.data() + first,
                       .mass_stride = static_cast<std::int64_t>(mass_.length[m * shape.group])});
    }
    attention_mass_cpu(heads, shape, MassBy::kQueryHead, context_);
    for (std::int32_t h = 0; h < n_heads; ++h) add_moments(row_mass_, h, recent, mass_);
  }
}

}  // namespace mneme

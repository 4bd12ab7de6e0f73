#include "src/attention/prefill_end.h"

#include <algorithm>
#include <chrono>

#include "src/base/check.h"
#include "src/kernels/attention_mass.h"

namespace mneme {
namespace {

// What a stage with a plain budget leaves after a step. Where every step is held to the budget, the next one's own
// token has to have room.
std::int32_t keep_count(const Recipe& recipe) {
  return recipe.budget - (recipe.prefill_end->when == DropWhen::kOverBudget ? 1 : 0);
}

}  // namespace

bool PrefillEnd::wants_lse(std::int32_t layer, const SeenRows& rows) {
  if (rows.method == nullptr || rows.n_rows == 0) return false;
  const Plan& plan = rows.method->plan();
  const std::int32_t n = plan.tap_rows();
  if (n == 0 || !plan.compressed(layer)) return false;
  if (n == Plan::kAllRows) return true;
  if (rows.decodes) return plan.drops() && plan.recipe.prefill_end->when == DropWhen::kOverBudget;
  return rows.prefill_left < n;
}

void PrefillEnd::run(std::int32_t layer, std::span<const SeenRows> all, const AttentionShape& shape) {
  for (const SeenRows& rows : all) {
    if (!wants_lse(layer, rows)) continue;
    const auto start = std::chrono::steady_clock::now();
    const Plan& plan = rows.method->plan();
    if (plan.tap_rows() == Plan::kAllRows) {
      sum_all_rows(layer, rows, shape);
    } else {
      save_rows(layer, rows, shape);
    }
    const bool each_step = plan.drops() && plan.recipe.prefill_end->when == DropWhen::kOverBudget;
    if (rows.decodes ? each_step : rows.prefill_left == 0) decide(layer, rows, shape);
    if (!rows.decodes)
      rows.method->stats().prefill_end_seconds +=
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

// Every head's received attention with these rows' share.
void PrefillEnd::sum_all_rows(std::int32_t layer, const SeenRows& rows, const AttentionShape& shape) {
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads;
  state.pending.mass.resize(static_cast<std::size_t>(n_kv));
  std::vector<MassHead> heads;
  runs_.clear();
  first_run_.assign(1, 0);
  for (std::int32_t m = 0; m < n_kv; ++m) {
    rows.cache->append_runs(layer, m, 0, rows.cache->length(), runs_);
    first_run_.push_back(runs_.size());
  }
  for (std::int32_t m = 0; m < n_kv; ++m) {
    const auto h = static_cast<std::size_t>(m);
    const auto n = static_cast<std::size_t>(rows.cache->n_stored(layer, m)),
               before = n - static_cast<std::size_t>(rows.n_rows);
    std::vector<float>& mass = state.pending.mass[h];
    // Tokens that nobody watched, because the method came later, have received nothing.
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

// The last rows may come in several passes: they follow one another, and a pass that is tried again writes them again.
void PrefillEnd::save_rows(std::int32_t layer, const SeenRows& rows, const AttentionShape& shape) {
  MethodState::TapRows& tap = rows.method->layer(layer).tap;
  const std::int32_t wanted = rows.decodes ? 1 : rows.method->plan().tap_rows() - rows.prefill_left;
  const std::int32_t n = std::min(rows.n_rows, wanted), begin = rows.cache->length() - rows.n_rows;
  if (rows.decodes || tap.end < begin || tap.end - tap.n > begin) tap.n = 0;  // not the rows before these
  tap.n = std::min(tap.n, std::max(0, tap.n - (tap.end - begin)));
  if (n < rows.n_rows) tap.n = 0;
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n_heads = n_kv * shape.group;
  const auto width = static_cast<std::size_t>(n_heads) * static_cast<std::size_t>(shape.head_dim);
  tap.q.resize(static_cast<std::size_t>(tap.n + n) * width);
  tap.lse.resize(static_cast<std::size_t>((tap.n + n) * n_heads));
  for (std::int32_t i = rows.n_rows - n; i < rows.n_rows; ++i, ++tap.n) {
    std::copy_n(rows.q + i * rows.q_stride, width,
                tap.q.begin() + static_cast<std::ptrdiff_t>(tap.n) * static_cast<std::ptrdiff_t>(width));
    for (std::int32_t m = 0; m < n_kv; ++m)
      std::copy_n(rows.lse + (std::int64_t{m} * rows.n_rows + i) * shape.group, shape.group,
                  tap.lse.begin() + tap.n * n_heads + m * shape.group);
  }
  tap.end = rows.cache->length();
}

// mass_: what the saved rows gave to every stored token, a row a query head.
void PrefillEnd::take_mass(std::int32_t layer, const SeenRows& rows, const AttentionShape& shape) {
  const MethodState::TapRows& tap = rows.method->layer(layer).tap;
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n_heads = n_kv * shape.group;
  runs_.clear();
  first_run_.assign(1, 0);
  first_.clear();
  length_.clear();
  std::size_t floats = 0;
  for (std::int32_t m = 0; m < n_kv; ++m) {
    const auto n = static_cast<std::size_t>(rows.cache->append_runs(layer, m, 0, rows.cache->length(), runs_));
    first_run_.push_back(runs_.size());
    for (std::int32_t g = 0; g < shape.group; ++g) {
      first_.push_back(floats);
      length_.push_back(n);
      floats += n;
    }
  }
  mass_.assign(floats, 0.0f);
  std::vector<MassHead> heads;
  for (std::int32_t m = 0; m < n_kv; ++m) {
    const auto h = static_cast<std::size_t>(m), first = static_cast<std::size_t>(m * shape.group);
    heads.push_back({.q = tap.q.data() + std::int64_t{m} * shape.group * shape.head_dim,
                     .q_stride = std::int64_t{n_heads} * shape.head_dim,
                     .lse = tap.lse.data() + std::int64_t{m} * shape.group,
                     .lse_stride = n_heads,
                     .n_rows = tap.n,
                     .runs = std::span(runs_).subspan(first_run_[h], first_run_[h + 1] - first_run_[h]),
                     .mass = mass_.data() + first_[first],
                     .mass_stride = static_cast<std::int64_t>(length_[first])});
  }
  attention_mass_cpu(heads, shape, MassBy::kQueryHead, context_);
}

void PrefillEnd::decide(std::int32_t layer, const SeenRows& rows, const AttentionShape& shape) {
  const Plan& plan = rows.method->plan();
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads;
  state.pending.prefill_end = !rows.decodes;
  LayerStats& stats = rows.method->stats().layers[static_cast<std::size_t>(layer)];
  if (!rows.decodes) {
    ++stats.prefill_ends;
    for (std::int32_t m = 0; m < n_kv; ++m) stats.prompt_tokens += rows.cache->n_stored(layer, m);
  }
  if (plan.recipe.norm) return decide_by_norm(layer, rows, shape);
  const std::int32_t n_keep = keep_count(plan.recipe);
  bool over = false;
  for (std::int32_t m = 0; m < n_kv; ++m) over = over || rows.cache->n_stored(layer, m) > n_keep;
  if (over) {
    const bool by_mass = plan.recipe.prefill_end->rank == Rank::kMass;
    if (by_mass && plan.tap_rows() != Plan::kAllRows) take_mass(layer, rows, shape);
    keep_by_rank(layer, rows, n_keep);
  }
  if (rows.decodes) return;
  for (std::int32_t m = 0; m < n_kv; ++m) stats.kept_tokens += std::min(rows.cache->n_stored(layer, m), n_keep);
}

void PrefillEnd::keep_by_rank(std::int32_t layer, const SeenRows& rows, std::int32_t n_keep) {
  const Plan& plan = rows.method->plan();
  const Recipe& recipe = plan.recipe;
  const DropStage& stage = *recipe.prefill_end;
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, group = plan.shape.group();
  const bool one = stage.scope == DropScope::kLayer, all_rows = plan.tap_rows() == Plan::kAllRows;
  const std::int32_t recent = std::max(0, recipe.recent - (stage.when == DropWhen::kOverBudget ? 1 : 0));
  std::vector<float> scores;
  auto& kept = state.pending.kept;
  kept.resize(static_cast<std::size_t>(n_kv));
  for (std::int32_t m = 0; m < n_kv; ++m) {
    if (one && m > 0) {
      kept[static_cast<std::size_t>(m)] = kept[0];
      continue;
    }
    const auto n = static_cast<std::size_t>(rows.cache->n_stored(layer, m));
    scores.assign(n, 0.0f);
    const auto add = [&](std::span<const float> mass) {
      MNEME_CHECK(mass.size() == n, "a layer decides for heads of {} and {} tokens", n, mass.size());
      for (std::size_t t = 0; t < n; ++t) scores[t] += mass[t];
    };
    for (std::int32_t h = one ? 0 : m; h < (one ? n_kv : m + 1) && stage.rank == Rank::kMass; ++h) {
      if (all_rows) {
        add(state.pending.mass[static_cast<std::size_t>(h)]);
      } else {
        for (std::int32_t g = 0; g < group; ++g) add(head_mass(h * group + g));
      }
    }
    const std::int32_t sink = rows.cache->rank_of(layer, m, std::min(recipe.sink, rows.cache->length()));
    const auto first = static_cast<std::size_t>(sink), ranked = n - std::min(n, static_cast<std::size_t>(recent));
    if (first < ranked)
      smooth(std::span(scores).subspan(first, ranked - first), stage.smooth, stage.smooth_by, scratch_.smoothed);
    keep_largest(scores, sink, recent, n_keep, scratch_, kept[static_cast<std::size_t>(m)]);
  }
}

void PrefillEnd::decide_by_norm(std::int32_t layer, const SeenRows& rows, const AttentionShape& shape) {
  const Plan& plan = rows.method->plan();
  MethodState::Layer& state = rows.method->layer(layer);
  const std::int32_t n_kv = rows.cache->shape().n_kv_heads, n = rows.cache->n_stored(layer, 0), tap = state.tap.n;
  take_mass(layer, rows, shape);
  for (std::size_t h = 0; h < length_.size(); ++h) {
    MNEME_CHECK(length_[h] == static_cast<std::size_t>(n), "a layer decides for heads of {} and {} tokens", n,
                length_[h]);
    // The mean over the rows that see a token.
    for (std::int32_t t = n - tap + 1; t < n; ++t)
      mass_[first_[h] + static_cast<std::size_t>(t)] *= static_cast<float>(tap) / static_cast<float>(n - t);
  }
  const HeadRows heads{.a = mass_.data(), .stride = n, .n_heads = n_kv * shape.group, .n = n};
  NormRule rule = plan.recipe.norm->rule();
  rule.sink = rows.cache->rank_of(layer, 0, std::min(rule.sink, rows.cache->length()));
  std::vector<TokenRange> kept;
  if (plan.drops() && plan.recipe.prefill_end->rank == Rank::kMass) {
    norm_largest(heads, rule, kept);
  } else {
    std::int32_t sink = rule.sink, from = norm_suffix(heads, rule);
    if (plan.drops()) {
      sink = std::max(sink, rows.cache->rank_of(layer, 0, std::min(plan.recipe.sink, rows.cache->length())));
      from = std::min(from, n - plan.recipe.recent);
    }
    if (from > sink && sink > 0) kept.push_back({0, sink});
    kept.push_back({from > sink ? from : 0, n});
  }
  std::int32_t n_kept = 0;
  for (const TokenRange& r : kept) n_kept += r.end - r.begin;
  rows.method->stats().layers[static_cast<std::size_t>(layer)].kept_tokens += std::int64_t{n_kept} * n_kv;
  state.pending.budget = n_kept;
  if (plan.drops() && n_kept < n) state.pending.kept.assign(static_cast<std::size_t>(n_kv), kept);
}

}  // namespace mneme

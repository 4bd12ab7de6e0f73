#include "src/engine/kv_method.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"
#include "src/recipes/fit_budget.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {

Recipe recipe_of(const KvMethodOptions& o, std::string* note) {
  const RecipeOptions options{.budget = o.budget, .sink = o.sink, .recent = o.recent, .dense_layers = o.dense_layers};
  // What "auto" becomes where a cache does not fit is auto_method()'s to say.
  Recipe recipe = o.recipe ? *o.recipe : make_recipe(o.method == kAutoMethod ? "full" : o.method, options);
  if (o.recipe) {
    recipe.budget = o.budget.value_or(recipe.budget);
    recipe.sink = o.sink.value_or(recipe.sink);
    recipe.recent = o.recent.value_or(recipe.recent);
    recipe.dense_layers = o.dense_layers.value_or(recipe.dense_layers);
  }
  if (!o.overrides.empty()) apply_overrides(o.overrides, recipe);
  // A recipe of the caller's says what it means.
  const RegionGiven given{.sink = o.recipe || o.sink || overrides_set(o.overrides, "sink"),
                          .recent = o.recipe || o.recent || overrides_set(o.overrides, "recent")};
  std::string shrunk = fit_defaults(given, recipe);
  if (note != nullptr) *note = std::move(shrunk);
  return recipe;
}

std::string_view auto_method(bool on_device, bool in_host_memory) {
  return on_device && in_host_memory ? "mneme" : "full";
}

KvMethodStats kv_method_stats(const MethodStats& stats, const Plan& plan, std::size_t index_bytes,
                              const PagePool& pool) {
  KvMethodStats out;
  std::int64_t steps = 0, attended = 0, index_read = 0;
  for (std::size_t l = 0; l < stats.layers.size(); ++l) {
    const LayerStats& s = stats.layers[l];
    std::int64_t layer_checks = 0, layer_corrections = 0;
    for (std::int64_t n : s.gate_checks) layer_checks += n;
    for (std::int64_t n : s.corrections) layer_corrections += n;
    out.layers.push_back({.dense = !plan.compressed(count32(l)),
                          .achieved_budget = ratio(s.attended_tokens, s.attended_heads),
                          .correction_rate = ratio(layer_corrections, layer_checks),
                          .kept_share = s.retention.prompt_tokens == 0
                                            ? 1.0
                                            : ratio(s.retention.kept_tokens, s.retention.prompt_tokens)});
    out.dropped_tokens += s.retention.dropped_tokens;
    steps = std::max(steps, s.steps);
    attended += s.attended_tokens;
    index_read += s.index_bytes_read;
    out.selections.checks += layer_checks;
    out.selections.corrections += layer_corrections;
    out.units.selected += s.selected_units;
    out.units.replaced += s.replaced_units;
    out.units.missing += s.missing_units;
    out.units.recalled += s.recalled_units;
    out.selections.made += s.selections;
    out.selections.reused += s.reused;
    out.audit.samples += s.audit.samples;
    out.audit.recall += s.audit.recall;
    out.audit.mass += s.audit.mass;
    out.audit.error += s.audit.error;
  }
  out.kv_bytes_read = attended * plan.shape.attention().token_bytes();
  out.kv_bytes_per_step = ratio(out.kv_bytes_read, steps);
  if (pool.on_device() && pool.in_host_memory())
    out.units.host_to_device_bytes = out.units.recalled * plan.rules.unit_tokens * plan.shape.attention().token_bytes();
  out.index_bytes_per_step = ratio(index_read, steps);
  out.prefill_end_seconds = stats.prefill_end_seconds;
  out.index_bytes = index_bytes;
  out.selections.correction_rate = ratio(out.selections.corrections, out.selections.checks);
  out.units.turnover = ratio(out.units.replaced, out.units.selected);
  for (double* mean : {&out.audit.recall, &out.audit.mass, &out.audit.error}) *mean = ratio(*mean, out.audit.samples);
  return out;
}

namespace {

// Tokens that a layer attends in all steps together; window 0: none.
std::int64_t attended_by_all(std::int64_t window, std::int64_t n_tokens, std::int64_t steps) {
  if (window == 0) window = std::numeric_limits<std::int64_t>::max();
  // Steps 0 to growing - 1 attend everything; the others attend the window.
  const std::int64_t growing = std::clamp<std::int64_t>(window - n_tokens, 0, steps);
  const std::int64_t attended = growing * n_tokens + growing * (growing + 1) / 2;
  return growing < steps ? attended + (steps - growing) * window : attended;
}

}  // namespace

KvMethodStats full_attention_stats(const MethodShape& shape, std::int64_t n_tokens, std::int64_t steps) {
  KvMethodStats out;
  std::int64_t all = 0;
  for (std::int32_t l = 0; l < shape.n_layers; ++l) {
    const std::int64_t attended = attended_by_all(shape.window_of(l), n_tokens, steps);
    out.layers.push_back({.dense = true, .achieved_budget = ratio(attended, steps)});
    all += attended;
  }
  out.kv_bytes_read = all * shape.n_kv_heads * shape.attention().token_bytes();
  out.kv_bytes_per_step = ratio(out.kv_bytes_read, steps);
  return out;
}

}  // namespace mneme

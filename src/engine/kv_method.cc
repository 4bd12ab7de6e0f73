#include "src/engine/kv_method.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "src/base/error.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

std::vector<std::int32_t> layers_of(const std::string& text) {
  std::vector<std::int32_t> layers;
  if (text == "none") return layers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::int32_t layer = -1;
    const char* const end = part.data() + part.size();
    const auto result = std::from_chars(part.data(), end, layer);
    if (result.ec != std::errc() || result.ptr != end || layer < 0)
      fail(ErrorKind::kOption, "--dense-layers: expected none, or layers as 0,1,31, found \"{}\"", text);
    layers.push_back(layer);
  }
  return layers;
}

double ratio(double a, double b) {
  return b == 0 ? 0 : a / b;
}
double ratio(std::int64_t a, std::int64_t b) {
  return ratio(static_cast<double>(a), static_cast<double>(b));
}

}  // namespace

Recipe recipe_of(const KvMethodOptions& o) {
  RecipeOptions options{.budget = o.budget, .sink = o.sink, .recent = o.recent, .dense_layers = {}};
  if (!o.dense_layers.empty()) options.dense_layers = layers_of(o.dense_layers);
  Recipe recipe = make_recipe(o.method, options);
  if (!o.overrides.empty()) apply_overrides(o.overrides, recipe);
  return recipe;
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
    out.layers.push_back({.dense = !plan.compressed(static_cast<std::int32_t>(l)),
                          .achieved_budget = ratio(s.attended_tokens, s.attended_heads),
                          .correction_rate = ratio(layer_corrections, layer_checks),
                          .kept_share = s.prompt_tokens == 0 ? 1.0 : ratio(s.kept_tokens, s.prompt_tokens)});
    out.dropped_tokens += s.dropped_tokens;
    steps = std::max(steps, s.steps);
    attended += s.attended_tokens;
    index_read += s.index_bytes_read;
    out.correction_checks += layer_checks;
    out.corrections += layer_corrections;
    out.selected_units += s.selected_units;
    out.replaced_units += s.replaced_units;
    out.missing_units += s.missing_units;
    out.recalled_units += s.recalled_units;
    out.selections += s.selections;
    out.reused += s.reused;
    out.audits += s.audits;
    out.audit_recall += s.audit_recall;
    out.audit_mass += s.audit_mass;
    out.audit_error += s.audit_error;
  }
  out.kv_bytes_read = attended * static_cast<std::int64_t>(plan.shape.attention().token_bytes());
  out.kv_bytes_per_step = ratio(out.kv_bytes_read, steps);
  if (pool.on_device() && pool.in_host_memory())
    out.host_to_device_bytes =
        out.recalled_units * plan.rules.unit_tokens * static_cast<std::int64_t>(plan.shape.attention().token_bytes());
  out.index_bytes_per_step = ratio(index_read, steps);
  out.prefill_end_seconds = stats.prefill_end_seconds;
  out.index_bytes = static_cast<std::int64_t>(index_bytes);
  out.correction_rate = ratio(out.corrections, out.correction_checks);
  out.turnover = ratio(out.replaced_units, out.selected_units);
  for (double* mean : {&out.audit_recall, &out.audit_mass, &out.audit_error})
    *mean = ratio(*mean, static_cast<double>(out.audits));
  return out;
}

}  // namespace mneme

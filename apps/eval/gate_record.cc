#include "apps/eval/gate_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/methods/decode_attention.h"
#include "src/recipes/override.h"
#include "src/selection/gate/gate.h"

namespace mneme::eval {

void GateRecord::see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) {
  if (row.method == nullptr) return;
  if (!row.method->asks_gate(layer, row.cache->length())) return;
  const Plan& plan = row.method->plan();
  const float* before = row.method->layer(layer).last_query.data();
  const std::int32_t n_gates = plan.gates(), heads = n_kv_heads_ * shape.group / n_gates;
  for (std::int32_t g = 0; g < n_gates; ++g) {
    const std::int64_t first = std::int64_t{g} * heads * shape.head_dim;
    add(layer, g, pooled_cosine(plan.selection.gate.pool, row.q + first, before + first, heads, shape.head_dim));
  }
}

std::vector<float> GateRecord::all() const {
  std::vector<float> all;
  for (const auto& list : values_) all.insert(all.end(), list.begin(), list.end());
  return all;
}

double correction_rate(std::span<const float> values, float tau) {
  if (values.empty()) return 0;
  const auto n = std::count_if(values.begin(), values.end(), [&](float c) { return !(c >= tau); });
  return ratio(n, values.size());
}

float tau_for_rate(std::span<const float> values, double rate) {
  MNEME_CHECK(!values.empty() && rate >= 0 && rate <= 1, "{} values, rate {}", values.size(), rate);
  std::vector<float> sorted;
  for (float c : values) sorted.push_back(std::isnan(c) ? -2.0f : c);
  std::sort(sorted.begin(), sorted.end());
  const auto at = std::min(sorted.size() - 1, part_of(sorted.size(), rate));
  return std::round(std::clamp(sorted[at], -1.0f, 1.0f) * 1000) / 1000;
}

Calibration calibrate(Recipe recipe, const MethodShape& shape, const CalibrationOptions& options, const GateRun& run) {
  const auto measure = [&](float tau, int round) {
    apply_overrides(fmt::format("tau={}", tau), recipe);
    GateRecord record(shape);
    run(recipe, round, record);
    if (record.all().empty())
      fail(ErrorKind::kOption,
           "the gate of '{}' never had to decide: contexts within its budget of {} tokens are attended whole; use "
           "longer "
           "contexts or a smaller budget",
           recipe.name, recipe.budget);
    return record;
  };
  const GateRecord free_running = measure(-1.0f, 0);
  float tau = tau_for_rate(free_running.all(), options.target());
  Calibration result{.rounds = {}, .last = GateRecord(shape)};
  for (int round = 1; round <= options.rounds && !result.reached; ++round) {
    result.last = measure(tau, round);
    const std::vector<float> values = result.last.all();
    const double rate = correction_rate(values, tau);
    result.rounds.push_back({tau, rate});
    result.reached = rate >= options.lowest && rate <= options.highest;
    tau = tau_for_rate(values, options.target());
  }
  return result;
}

}  // namespace mneme::eval

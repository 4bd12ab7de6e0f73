// What a method's gate saw in a run: the cosines that it compares with tau.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/attention/decode_tap.h"
#include "src/recipes/compile.h"

namespace mneme::eval {

// Records each value that a gate decides by: one a step, layer and KV head under a speculative schedule, one a step and
// layer (in the place of its first KV head) under a boundary schedule. Rows without a gate, dense layers and steps that
// the gate is not asked at are left out.
class GateRecord final : public DecodeTap {
 public:
  explicit GateRecord(const MethodShape& shape)
      : n_kv_heads_(shape.n_kv_heads), values_(static_cast<std::size_t>(shape.n_layers * shape.n_kv_heads)) {}

  void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) override;
  void add(std::int32_t layer, std::int32_t kv_head, float value) { at(layer, kv_head).push_back(value); }

  std::span<const float> values(std::int32_t layer, std::int32_t kv_head) const {
    return values_[static_cast<std::size_t>(layer * n_kv_heads_ + kv_head)];
  }
  std::vector<float> all() const;

 private:
  std::vector<float>& at(std::int32_t layer, std::int32_t kv_head) {
    return values_[static_cast<std::size_t>(layer * n_kv_heads_ + kv_head)];
  }
  std::int32_t n_kv_heads_;
  std::vector<std::vector<float>> values_;  // by layer and KV head
};

// The share of values that a gate with this tau corrects. NaN is always corrected. No values: 0.
double correction_rate(std::span<const float> values, float tau);
// The tau that corrects the share `rate` of the values, in thousandths. Requires  at least one value; rate in [0, 1].
float tau_for_rate(std::span<const float> values, double rate);

struct CalibrationOptions {
  double lowest = 0.10, highest = 0.20;  // correction rates that are good enough; between them lies what is aimed at
  int rounds = 4;                        // measuring runs, at most

  double target() const { return (lowest + highest) / 2; }
};
struct CalibrationRound {
  float tau = 0;
  double rate = 0;  // measured with it
};
struct Calibration {
  std::vector<CalibrationRound> rounds;  // the last is the result
  GateRecord last;                       // what the gate saw in it
  bool reached = false;                  // the last rate is good enough

  float tau() const { return rounds.back().tau; }
};

// Runs a recipe on contexts of its own for every `round` and records its gate.
using GateRun = std::function<void(const Recipe& recipe, int round, GateRecord& record)>;

// Finds the tau of a recipe's gate. The queries themselves move with what is attended, so the quantile of a run without
// corrections (tau -1) is a first guess only: it is measured on other contexts, and corrected by what these show.
//
// Errors  kOption: the recipe has no gate, or it never had to decide anything.
Calibration calibrate(Recipe recipe, const MethodShape& shape, const CalibrationOptions& options, const GateRun& run);

}  // namespace mneme::eval

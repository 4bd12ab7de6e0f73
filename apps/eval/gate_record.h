// Records the cosines that a method's gate compares with tau, and calibrates tau.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/methods/decode_observer.h"
#include "src/recipes/compile.h"

namespace mneme::eval {

// Records each gate value: one per (step, layer, KV head) under a speculative schedule, one per (step, layer) under a
// boundary schedule, stored for KV head 0. Skips rows without a gate, dense layers, and steps that do not evaluate it.
class GateRecord final : public DecodeObserver {
 public:
  explicit GateRecord(const MethodShape& shape)
      : n_kv_heads_(shape.n_kv_heads), values_(shape.n_layers * shape.n_kv_heads) {}

  void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) override;
  void add(std::int32_t layer, std::int32_t kv_head, float value) { at(layer, kv_head).push_back(value); }

  std::span<const float> values(std::int32_t layer, std::int32_t kv_head) const {
    return values_[layer * n_kv_heads_ + kv_head];
  }
  std::vector<float> all() const;

 private:
  std::vector<float>& at(std::int32_t layer, std::int32_t kv_head) { return values_[layer * n_kv_heads_ + kv_head]; }
  std::int32_t n_kv_heads_;
  std::vector<std::vector<float>> values_;  // by layer and KV head
};

// Share of values below tau, which are corrected. NaN is always corrected. No values: 0.
double correction_rate(std::span<const float> values, float tau);
// The tau, in thousandths, that corrects the share `rate` of values. Requires  at least one value; rate in [0, 1].
float tau_for_rate(std::span<const float> values, double rate);

struct CalibrationOptions {
  double lowest = 0.10, highest = 0.20;  // accepted correction rates; the target is between them
  int rounds = 4;                        // at most this many measuring runs

  double target() const { return (lowest + highest) / 2; }
};
struct CalibrationRound {
  float tau = 0;
  double rate = 0;  // measured with it
};
struct Calibration {
  std::vector<CalibrationRound> rounds;  // the last is the result
  GateRecord last;                       // gate values of that run
  bool reached = false;                  // the last rate is accepted

  float tau() const { return rounds.back().tau; }
};

// Runs a recipe on contexts of its own for every `round` and records its gate.
using GateRun = std::function<void(const Recipe& recipe, int round, GateRecord& record)>;

// Finds the tau of a recipe's gate. Queries depend on what is attended, so the quantile of a run without corrections
// (tau -1) is only the first guess: later rounds measure it on other contexts and adjust it.
//
// Errors  kOption: the recipe has no gate, or was never evaluated.
Calibration calibrate(Recipe recipe, const MethodShape& shape, const CalibrationOptions& options, const GateRun& run);

}  // namespace mneme::eval

#include "src/model/op_timer.h"

#include "src/base/seconds.h"

namespace mneme {

std::string_view op_name(Op op) {
  static constexpr std::array<std::string_view, kOps.size()> kNames = {"GEMM", "attention", "norms, rope, swiglu",
                                                                       "head", "other"};
  return kNames[underlying(op)];
}

void OpTimer::start() {
  seconds_.fill(0);
  spans_.clear();
  last_ = Clock::now();
}

void OpTimer::lap(Op op, std::int32_t layer) {
  const Clock::time_point now = Clock::now();
  seconds_[underlying(op)] += seconds_between(last_, now);
  if (keep_spans_) spans_.push_back({op, layer, last_, now});
  last_ = now;
}

}  // namespace mneme

// An attention sink: a logit without a value, in the denominator of every row of its query head.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace mneme {

// Softmax over entries and a sink. `top` is the largest logit of the entries in units of log 2 (-inf: none), `sum` the
// sum of 2^(logit - top), `sink` a natural logarithm.
struct SinkMerge {
  float norm;  // of the sum of 2^(logit - top) values
  float lse;   // natural logarithm, of entries and sink
};

// NaN  in `top` or `sum` gives NaN.
inline SinkMerge merge_sink(float top, float sum, float sink) {
  constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  if (sum == 0) return {0.0f, sink};
  const float sink2 = sink * kLog2e, base = std::max(top, sink2);
  if (base == kMinusInf) return {0.0f, kMinusInf};
  const float weight = std::exp2(top - base), total = sum * weight + std::exp2(sink2 - base);
  return {weight / total, (base + std::log2(total)) * kLn2};
}

}  // namespace mneme

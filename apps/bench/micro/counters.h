// Arguments and counters of Google Benchmark in the types of kernels.
#pragma once

#include <benchmark/benchmark.h>

#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme {

// The i-th argument as the 32-bit count that shapes are made of.
inline std::int32_t argument(const benchmark::State& state, std::size_t i) {
  return count32(state.range(i));
}

// `amount` of each iteration in `unit`, a second.
template <Number T>
benchmark::Counter per_second(T amount, double unit = 1.0) {
  return {ratio(amount, unit), benchmark::Counter::kIsIterationInvariantRate};
}

// Seconds for one of the `amount` that each iteration handles.
template <Number T>
benchmark::Counter seconds_each(T amount) {
  return {ratio(amount, 1.0), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert};
}

}  // namespace mneme

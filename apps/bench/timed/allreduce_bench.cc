#include "apps/bench/timed/allreduce_bench.h"

#include <algorithm>
#include <chrono>

#include "apps/bench/timed/samples.h"

namespace mneme {

std::int32_t all_reduces_a_run(std::size_t bytes) {
  constexpr std::size_t kSmall = std::size_t{1} << 20, kLarge = std::size_t{64} << 20;
  return bytes <= kSmall ? 20 : bytes <= kLarge ? 5 : 1;
}

AllReduceResult measure_all_reduce(Collective& ranks, const AllReduceCase& c, std::int32_t times) {
  using Clock = std::chrono::steady_clock;
  const std::int32_t n = all_reduces_a_run(c.bytes);
  std::vector<float> values(c.bytes / sizeof(float), 1.0f);
  std::vector<double> seconds;
  for (std::int32_t i = -1; i < times; ++i) {  // the first is not counted
    ranks.barrier();
    const Clock::time_point begin = Clock::now();
    for (std::int32_t k = 0; k < n; ++k) ranks.all_reduce(values);
    const double took = std::chrono::duration<double>(Clock::now() - begin).count() / n;
    if (i >= 0) seconds.push_back(took);
    std::fill(values.begin(), values.end(), 1.0f);
  }
  return {.seconds = quantiles_of(seconds).median, .a_run = n};
}

}  // namespace mneme

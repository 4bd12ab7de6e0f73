// All-reduces of f32 over the ranks of a group, by themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/parallel/collective.h"

namespace mneme {

struct AllReduceCase {
  std::size_t bytes = 0;  // a multiple of 4
  std::string form;       // "shared" or "socket" of the processes themselves; "nccl", "host" on devices
};
struct AllReduceResult {
  double seconds = 0;      // of one: the median over graphs (or runs) of several
  std::int32_t a_run = 0;  // of so many
};

// By the processes' own collective. Requires  every rank calls it with the same case.
AllReduceResult measure_all_reduce(Collective& ranks, const AllReduceCase& c, std::int32_t times);
// All-reduces that a run has: enough to hide how it starts, few enough for the largest.
std::int32_t all_reduces_a_run(std::size_t bytes);

}  // namespace mneme

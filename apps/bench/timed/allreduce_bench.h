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
  // "shared" or "socket" of the processes themselves. On devices "nccl", "host", "peers" (packets), "reads"; "nccl+norm" and "peers+norm": rows
  // of 4,096 that join a residual and start the next norm, as in a step.
  std::string form;
};
struct AllReduceResult {
  double seconds = 0;      // of one: the median over graphs (or runs) of several; 0: the form has not this size
  std::int32_t a_run = 0;  // of so many
};

// By the processes' own collective. Requires  every rank calls it with the same case.
AllReduceResult measure_all_reduce(Collective& ranks, const AllReduceCase& c, std::int32_t times);
// All-reduces that a run has: enough to hide how it starts, few enough for the largest.
std::int32_t all_reduces_a_run(std::size_t bytes);

}  // namespace mneme

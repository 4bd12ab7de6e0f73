// NUMA placement of threads and memory.
//
// A policy holds for the whole process and for memory that is touched after it is set. On a machine with one node every
// policy does nothing.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "mneme/options.h"
#include "src/base/thread_pool.h"

namespace mneme {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // ascending
  bool operator==(const NumaNode&) const = default;
};

// Parses a Linux CPU list, "0-3,8,10-11". Returns an empty vector where the text is malformed.
std::vector<int> parse_cpu_list(std::string_view text);

// Nodes that have CPUs, ascending by id; empty where `folder` does not list any.
std::vector<NumaNode> read_numa_nodes(const std::filesystem::path& folder = "/sys/devices/system/node");

// CPUs for threads 0, 1, ..., taken from `allowed` (ascending). kNone and machines with one node: `allowed`.
// kDistribute: round-robin over the nodes. kIsolate: those of the node that contains `current_cpu`.
std::vector<int> assign_cpus(NumaPolicy policy, std::span<const int> allowed, std::span<const NumaNode> nodes,
                             int current_cpu);

// Sets the memory policy and creates the compute pool. `threads` 0: one per CPU that the policy allows. Best effort:
// what a container forbids is left unchanged.
std::unique_ptr<ThreadPool> make_thread_pool(int threads, Pinning pinning, NumaPolicy policy);

}  // namespace mneme

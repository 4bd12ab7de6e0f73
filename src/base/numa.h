// Where threads run and memory lies on a machine with several memory nodes (NUMA).
//
// On a machine with one node every policy leaves things as they are. Policies hold for the whole process and for
// memory that is touched after they are set.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "src/base/thread_pool.h"

namespace mneme {

enum class NumaPolicy {
  kNone,        // as the system places them
  kDistribute,  // threads over the nodes in turn, pages of memory over all nodes: the bandwidth of all
  kIsolate,     // threads and memory on one node, the one this thread runs on: no traffic between nodes
};

// Errors  kOption: a name other than none, distribute, isolate.
NumaPolicy numa_policy(std::string_view name);

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // ascending
  bool operator==(const NumaNode&) const = default;
};

// "0-3,8,10-11" as numbers; empty where the text is none.
std::vector<int> parse_cpu_list(std::string_view text);

// Nodes that have CPUs, by id; none where the folder does not say.
std::vector<NumaNode> read_numa_nodes(const std::filesystem::path& folder = "/sys/devices/system/node");

// The CPUs that threads 0, 1, ... take, out of `allowed` (ascending). kNone and machines of one node: `allowed`.
// kDistribute: the nodes' CPUs in turn. kIsolate: those of the node that has `here`.
std::vector<int> place_threads(NumaPolicy policy, std::span<const int> allowed, std::span<const NumaNode> nodes,
                               int here);

// Sets the policy of memory and makes the pool that computes. `threads` 0: one per CPU that the policy leaves.
// Best effort: what a container forbids stays as it was.
std::unique_ptr<ThreadPool> make_thread_pool(int threads, Pinning pinning, NumaPolicy policy);

}  // namespace mneme

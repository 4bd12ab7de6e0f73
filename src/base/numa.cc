#include "src/base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <fstream>
#include <string>

#include "src/base/error.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

constexpr int kMaxNodes = 1024;  // Linux's limit

void set_memory_policy(int mode, std::span<const NumaNode> nodes) {
  constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  unsigned long mask[kMaxNodes / kWordBits] = {};
  for (const NumaNode& node : nodes)
    if (node.id >= 0 && node.id < kMaxNodes) mask[node.id / kWordBits] |= 1ul << node.id % kWordBits;
  syscall(SYS_set_mempolicy, mode, mask, kMaxNodes + 1);
}

bool has(const NumaNode& node, int cpu) {
  return std::binary_search(node.cpus.begin(), node.cpus.end(), cpu);
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    int first = 0, last = 0;
    const char *begin = part.data(), *end = begin + part.size();
    auto at = std::from_chars(begin, end, first);
    last = first;
    if (at.ec == std::errc() && at.ptr != end && *at.ptr == '-') at = std::from_chars(at.ptr + 1, end, last);
    if (at.ec != std::errc() || at.ptr != end || first < 0 || last < first || last - first > 1 << 16) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<NumaNode> read_numa_nodes(const std::filesystem::path& folder) {
  std::vector<NumaNode> nodes;
  const auto line = [](const std::filesystem::path& path) {
    std::ifstream in(path);
    std::string text;
    std::getline(in, text);
    return text;
  };
  for (int id : parse_cpu_list(line(folder / "online"))) {
    NumaNode node{id, parse_cpu_list(line(folder / ("node" + std::to_string(id)) / "cpulist"))};
    std::sort(node.cpus.begin(), node.cpus.end());
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<int> assign_cpus(NumaPolicy policy, std::span<const int> allowed, std::span<const NumaNode> nodes,
                             int current_cpu) {
  std::vector<int> assigned;
  if (policy == NumaPolicy::kIsolate) {
    for (const NumaNode& node : nodes)
      if (has(node, current_cpu))
        for (int cpu : allowed)
          if (has(node, cpu)) assigned.push_back(cpu);
  } else if (policy == NumaPolicy::kDistribute) {
    std::vector<std::vector<int>> of_node(nodes.size());
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (int cpu : allowed)
        if (has(nodes[i], cpu)) of_node[i].push_back(cpu);
    for (std::size_t round = 0; assigned.size() < allowed.size(); ++round) {
      const std::size_t before = assigned.size();
      for (const std::vector<int>& cpus : of_node)
        if (round < cpus.size()) assigned.push_back(cpus[round]);
      if (assigned.size() == before) break;  // CPUs that belong to no node
    }
  }
  if (assigned.empty()) assigned.assign(allowed.begin(), allowed.end());
  return assigned;
}

std::unique_ptr<ThreadPool> make_thread_pool(int threads, Pinning pinning, NumaPolicy policy) {
  const std::vector<int> allowed = affinity_cpus();
  const std::vector<NumaNode> nodes = policy == NumaPolicy::kNone ? std::vector<NumaNode>() : read_numa_nodes();
  const int current_cpu = sched_getcpu();
  std::vector<int> cpus = nodes.size() > 1 ? assign_cpus(policy, allowed, nodes, current_cpu) : allowed;
  if (nodes.size() > 1) {
    // Without pinning, threads could migrate away from bound memory: isolated threads stay on their node as a group.
    if (policy == NumaPolicy::kDistribute) set_memory_policy(MPOL_INTERLEAVE, nodes);
    if (policy == NumaPolicy::kIsolate) {
      std::vector<NumaNode> home;
      for (const NumaNode& node : nodes)
        if (has(node, cpus.front())) home.push_back(node);
      set_memory_policy(MPOL_PREFERRED, home);
      restrict_to(cpus);
    }
  }
  const int n = threads > 0 ? threads : size32(cpus);
  return std::make_unique<ThreadPool>(n, pinning, cpus);
}

}  // namespace mneme

#include "apps/mneme/measured/machine_json.h"

#include <fmt/format.h>

#include <fstream>

namespace mneme::cli {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Json machine_json(const Machine& m) {
  return {{"cpu", m.cpu},
          {"cpus_online", m.cpus_online},
          {"cpus_allowed", m.cpus_allowed},
          {"cores", m.cores},
          {"numa_nodes", m.numa_nodes},
          {"l3_bytes", m.l3_bytes},
          {"memory_bytes", m.memory_bytes},
          {"memory_limit", m.memory_limit},
          {"memory_available", m.memory_available},
          {"features", m.features}};
}

Json device_json(const DeviceInfo& d) {
  return {{"name", d.name},           {"compute_capability", fmt::format("{}.{}", d.compute_major, d.compute_minor)},
          {"sm_count", d.sm_count},   {"memory_bytes", d.memory_bytes},
          {"l2_bytes", d.l2_bytes},   {"driver", d.driver},
          {"cuda_runtime", d.runtime}};
}

std::vector<std::string> command_line() {
  std::vector<std::string> words;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) return words;
  words[0] = words[0].substr(words[0].find_last_of('/') + 1);
  if (const std::string companion = "mneme-"; words[0].starts_with(companion)) {
    words.insert(words.begin() + 1, words[0].substr(companion.size()));
    words[0] = "mneme";
  }
  return words;
}

}  // namespace mneme::cli

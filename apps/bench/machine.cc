#include "apps/bench/machine.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "src/base/numa.h"
#include "src/base/size32.h"
#include "src/base/thread_pool.h"
#include "src/engine/memory_limit.h"

namespace mneme {
namespace {

// In /proc/cpuinfo, of x86 and of Arm.
constexpr std::array<std::string_view, 17> kFeatures = {
    "avx2",     "fma",      "f16c",  "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_bf16", "amx_int8", "asimd", "asimddp",  "bf16",    "i8mm",     "sve",         "sve2"};

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

void read_cpuinfo(Machine& m) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(line.substr(0, colon)), value = trimmed(line.substr(colon + 1));
    if (key == "model name" && m.cpu.empty()) m.cpu = value;
    if ((key != "flags" && key != "Features") || !m.features.empty()) continue;
    std::istringstream words(value);
    std::set<std::string> have;
    for (std::string word; words >> word;) have.insert(word);
    for (const std::string_view f : kFeatures)
      if (have.contains(std::string(f))) m.features.emplace_back(f);
  }
}

void read_topology(Machine& m) {
  std::set<std::pair<std::string, std::string>> cores;
  std::set<std::string> l3_seen;
  for (const int cpu : affinity_cpus()) {
    const std::filesystem::path folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
    cores.emplace(first_line(folder / "topology/physical_package_id"), first_line(folder / "topology/core_id"));
    for (int i = 0; i < 8; ++i) {
      const std::filesystem::path cache = folder / "cache" / ("index" + std::to_string(i));
      if (first_line(cache / "level") != "3") continue;
      if (l3_seen.insert(first_line(cache / "shared_cpu_list")).second)
        m.l3_bytes += parse_size(first_line(cache / "size"));
    }
  }
  cores.erase({"", ""});
  m.cores = size32(cores);
}

std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    if (word != "MemAvailable:") continue;
    std::int64_t kibibytes = 0;
    file >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

}  // namespace

std::int64_t parse_size(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return 0;
  switch (text.data() + text.size() - end) {
    case 0:
      return value;
    case 1:
      return *end == 'K' ? value << 10 : *end == 'M' ? value << 20 : *end == 'G' ? value << 30 : 0;
    default:
      return 0;
  }
}

Machine read_machine() {
  Machine m;
  read_cpuinfo(m);
  read_topology(m);
  m.cpus_online = count32(sysconf(_SC_NPROCESSORS_ONLN));
  m.cpus_allowed = available_cpus();
  if (m.cores == 0) m.cores = m.cpus_allowed;
  m.numa_nodes = size32(parse_cpu_list(first_line("/sys/devices/system/node/has_memory")));
  m.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  m.memory_limit = memory_limit_bytes();
  m.memory_available = available_memory();
  return m;
}

}  // namespace mneme

// Properties of the machine that bound how fast a model runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mneme {

// Zero or empty where unknown.
struct Machine {
  std::string cpu;                    // model name
  int cpus_online = 0;                // logical CPUs of the machine
  int cpus_allowed = 0;               // those of the process's affinity mask
  int cores = 0;                      // physical cores among the allowed ones
  int numa_nodes = 0;                 // with memory
  std::int64_t l3_bytes = 0;          // all L3 caches that the allowed CPUs reach
  std::int64_t memory_bytes = 0;      // of the machine
  std::int64_t memory_limit = 0;      // that this process may have: the control group's limit, or all
  std::int64_t memory_available = 0;  // free now, caches of files included
  std::vector<std::string>
      features;  // instruction sets that the kernels look for, as the kernel of the system names them
};

Machine read_machine();

// A size as sysfs writes it: "32768K", "1M", "512". 0: not one.
std::int64_t parse_size(const std::string& text);

}  // namespace mneme

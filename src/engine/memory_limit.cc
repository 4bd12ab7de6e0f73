#include "src/engine/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace mneme {

std::int64_t memory_limit_bytes() {
  std::int64_t limit = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  // Control groups, version 2 and 1, as a container sees its own. "max" does not read as a number: no limit.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::int64_t bytes = 0;
    if (std::ifstream(path) >> bytes && bytes > 0) limit = std::min(limit, bytes);
  }
  return limit;
}

}  // namespace mneme

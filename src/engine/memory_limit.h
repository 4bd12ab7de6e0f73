// How much memory this process may have.
#pragma once

#include <cstdint>

namespace mneme {

// The machine's memory, or the limit of the process's control group where that is less. Bytes.
std::int64_t memory_limit_bytes();

}  // namespace mneme

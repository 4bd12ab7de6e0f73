// How much memory this process may have.
#pragma once

#include <cstdint>

namespace mneme {

// The machine's memory, or the limit of the process's control group where that is less. Bytes.
std::int64_t memory_limit_bytes();

// Of it, what stays for everything else where keys and values for a device lie in it.
inline constexpr std::int64_t kReservedHostBytes = std::int64_t{4} << 30;

}  // namespace mneme

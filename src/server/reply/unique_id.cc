#include "src/server/reply/unique_id.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <random>

namespace mneme::server {

std::string unique_id() {
  static std::atomic<std::uint64_t> count = 0;
  static const std::uint64_t start = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  return fmt::format("{:016x}{:08x}", start, count++);
}

}  // namespace mneme::server

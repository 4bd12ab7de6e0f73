// MNEME_CHECK(condition, "format {}", ...): aborts on a bug of ours. Always on, release builds included: going on could
// show one user another user's keys and values. What a user or a file can cause is an Error (src/base/error.h), never a
// check.
#pragma once

#include <fmt/format.h>

#include <string>

namespace mneme {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace mneme

#define MNEME_CHECK(condition, ...)                                                      \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::mneme::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)

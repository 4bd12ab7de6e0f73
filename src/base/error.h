// fail(kind, "format {}", ...): throws mneme::Error with a formatted message.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "mneme/error.h"

namespace mneme {

template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace mneme

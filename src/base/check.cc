#include "src/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace mneme {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "mneme: internal error at %s:%d: %s: %s\n", file, line, condition, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace mneme

// Innermost loops under AddressSanitizer and ThreadSanitizer: a check at every load costs several times the loop
// itself. Such a function is not instrumented; its caller checks the whole range first.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace mneme {

#if defined(__SANITIZE_ADDRESS__)

// Marks a function that is called after expect_addressable() on everything it reads and writes.
#define MNEME_UNCHECKED_LOOP __attribute__((no_sanitize("address,undefined")))

// Aborts with AddressSanitizer's report where any of these bytes is poisoned.
inline void expect_addressable(const void* p, std::size_t bytes) {
  const void* bad = __asan_region_is_poisoned(const_cast<void*>(p), bytes);
  if (bad != nullptr) static_cast<void>(*static_cast<const volatile std::byte*>(bad));
}

#elif defined(__SANITIZE_THREAD__)

#define MNEME_UNCHECKED_LOOP __attribute__((no_sanitize("thread")))

extern "C" void __tsan_read_range(void* address, unsigned long bytes);
// ThreadSanitizer reports concurrent writes to this range.
inline void expect_addressable(const void* p, std::size_t bytes) {
  __tsan_read_range(const_cast<void*>(p), bytes);
}

#else

#define MNEME_UNCHECKED_LOOP
inline void expect_addressable(const void*, std::size_t) {}

#endif

}  // namespace mneme

// Innermost loops under AddressSanitizer and ThreadSanitizer: a look at every load takes several times what the loop
// takes. What such a function touches is looked at in whole by whoever calls it.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace mneme {

#if defined(__SANITIZE_ADDRESS__)

// Of a function that is called after expect_addressable() for all that it reads and writes.
#define MNEME_CHECKED_BEFORE __attribute__((no_sanitize("address,undefined")))

// Aborts with AddressSanitizer's report where one of these bytes is not to be touched.
inline void expect_addressable(const void* p, std::size_t bytes) {
  const void* bad = __asan_region_is_poisoned(const_cast<void*>(p), bytes);
  if (bad != nullptr) static_cast<void>(*static_cast<const volatile std::byte*>(bad));
}

#elif defined(__SANITIZE_THREAD__)

#define MNEME_CHECKED_BEFORE __attribute__((no_sanitize("thread")))

extern "C" void __tsan_read_range(void* address, unsigned long bytes);
// Others that write there meanwhile are reported.
inline void expect_addressable(const void* p, std::size_t bytes) {
  __tsan_read_range(const_cast<void*>(p), bytes);
}

#else

#define MNEME_CHECKED_BEFORE
inline void expect_addressable(const void*, std::size_t) {}

#endif

}  // namespace mneme

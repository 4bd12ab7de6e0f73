// Threads of tests whose results no number of threads changes.
#pragma once

namespace mneme {

// Two under AddressSanitizer spend their time waiting for each other, layer after layer, where there are no more cores
// than tests that run at once; ThreadSanitizer and the release build have two.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr int kTestThreads = 1;
#else
inline constexpr int kTestThreads = 2;
#endif

}  // namespace mneme

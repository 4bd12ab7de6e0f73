// Sanitizers cost a factor of ten and more: what takes seconds then takes shorter inputs, or fewer cases of a kind. Builds
// without them run all of it: release in ./test --all, and for kernels and the program in ./test too.
#pragma once

namespace mneme {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace mneme

// A plain read of memory, beside which kernels and steps are measured.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mneme {

// Sum of the words modulo 2^64, by one thread. Requires  n: a multiple of 128.
std::uint64_t sum_words(const std::uint64_t* words, std::size_t n);

}  // namespace mneme

// Benchmarks: selections of which a given share differs from the previous step's.
#pragma once

#include "src/offload/device_cache_cuda.cuh"
#include "src/selection/topk/topk_cuda.cuh"

namespace mneme::cuda::topk {

// A selection is a window on a permutation of the candidates, along which it moves, so that none returns soon.
struct Walk {
  std::uint32_t m, step, first;  // candidates on the walk: as many over many steps

  // Of n candidates about k are selected, after `made` selections of about `each`.
  __device__ Walk(int n, int k, int made, float turnover, double each, std::uint32_t seed) {
    const int piece = min(128, max((1 << (31 - __clz(n))) / 2, 1));
    m = static_cast<std::uint32_t>(max(n / piece * piece, k));
    step = m % 7919 == 0 ? 7907 : 7919;
    const auto moved = static_cast<std::uint64_t>(static_cast<double>(made) * static_cast<double>(turnover) * each);
    first = static_cast<std::uint32_t>((moved + hash_random(seed, 7)) % m);
  }
  // The j-th best, j < m.   part: 1 / m
  __device__ __forceinline__ int at(int j, double part) const {
    std::uint32_t i = first + static_cast<std::uint32_t>(j);
    if (i >= m) i -= m;
    // x % m without a 64-bit division, which would take longer than everything else here.
    const std::uint64_t x = static_cast<std::uint64_t>(i) * step;
    auto rest = static_cast<std::int64_t>(x) - static_cast<std::int64_t>(static_cast<double>(x) * part) * m;
    if (rest < 0) rest += m;
    if (rest >= m) rest -= m;
    return static_cast<int>(rest);
  }
  // Marks the best k in a share of `own` candidates from `begin` on. Returns how many of the thread's precede it.
  template <int kThreads>
  __device__ int mark(int k, int begin, int own, std::uint32_t* mask) const {
    const double part = 1.0 / m;
    int before = 0;
    for (int j = threadIdx.x; j < k; j += kThreads) {
      const int i = at(j, part) - begin;
      before += i < 0;
      if (i >= 0 && i < own) set_bit(mask, i);
    }
    return before;
  }
  // Sets keys of n candidates, and their bounds. Called by the whole block.
  template <int kThreads, typename Bounds>
  __device__ void set_keys(int n, std::uint32_t* keys, Bounds& bounds) const {
    const double part = 1.0 / m;
    for (std::uint32_t i = m + threadIdx.x; i < n; i += kThreads) keys[i] = 0;
    for (std::uint32_t j = threadIdx.x; j < m; j += kThreads) keys[at(static_cast<int>(j), part)] = m - j;
    if (threadIdx.x == 0) bounds.least = 0, bounds.most = m;
    __syncthreads();
  }
};

}  // namespace mneme::cuda::topk

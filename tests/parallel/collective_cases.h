// What every collective must do, seen from one of its ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

#include "src/parallel/collective.h"

namespace mneme::parallel_test {

// Values whose sum depends on the order in which they are added.
inline std::vector<float> values_of(int rank, std::size_t n) {
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + 7));
  std::uniform_real_distribution<float> value(-1e4f, 1e4f);
  std::vector<float> out(n);
  for (float& v : out) v = value(random);
  return out;
}

inline std::vector<float> sum_in_rank_order(int size, std::size_t n) {
  std::vector<float> sum = values_of(0, n);
  for (int r = 1; r < size; ++r) {
    const std::vector<float> other = values_of(r, n);
    for (std::size_t i = 0; i < n; ++i) sum[i] += other[i];
  }
  return sum;
}

// 0, 1, a buffer and one more or less, several buffers.
inline const std::vector<std::size_t> kSizes = {0, 1, 31, 65535, 65536, 65537, 200'000};

inline bool reduces_rightly(Collective& ranks) {
  bool right = true;
  for (const std::size_t n : kSizes) {
    std::vector<float> values = values_of(ranks.rank(), n);
    ranks.all_reduce(values);
    right = right && values == sum_in_rank_order(ranks.size(), n);
  }
  return right;
}

inline bool gathers_rightly(Collective& ranks) {
  bool right = true;
  for (const std::size_t n : kSizes) {
    const std::vector<float> mine = values_of(ranks.rank(), n);
    std::vector<float> all(n * ranks.size());
    ranks.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < ranks.size(); ++r) {
      const std::vector<float> other = values_of(r, n);
      right = right && std::equal(other.begin(), other.end(), all.begin() + static_cast<std::ptrdiff_t>(n * r));
    }
    for (int root = 0; root < ranks.size(); ++root) {
      std::vector<float> told = values_of(ranks.rank(), n);
      ranks.broadcast(std::as_writable_bytes(std::span(told)), root);
      right = right && told == values_of(root, n);
    }
  }
  return right;
}

}  // namespace mneme::parallel_test

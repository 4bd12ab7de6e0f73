// What tests of sequences share: a shape, tokens that carry a value, and the invariants of a pool and its caches.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <vector>

#include "src/kv/cache_invariants.h"
#include "src/kv/sequence_cache.h"

namespace mneme {

inline constexpr KvShape kShape{.n_layers = 2, .n_kv_heads = 2, .head_dim = 8, .dtype = DType::kBF16};

// Fills a token's key and value with `value`.
inline void stamp_token(std::byte* token, std::uint64_t value) {
  for (std::size_t b = 0; b < kShape.token_bytes(); b += sizeof(value)) std::memcpy(token + b, &value, sizeof(value));
}

// Whether a token begins and ends with `value`.
inline bool has_stamp(const std::byte* token, std::uint64_t value) {
  return std::memcmp(token, &value, sizeof(value)) == 0 &&
         std::memcmp(token + kShape.token_bytes() - sizeof(value), &value, sizeof(value)) == 0;
}

// Checked: a struct with a SequenceCache `cache`.
template <typename Checked>
void expect_sound(const PagePool& pool, const std::deque<Checked>& all) {
  std::vector<CacheSnapshot> caches;
  for (const Checked& c : all) caches.push_back(snapshot_of(c.cache));
  ASSERT_EQ(find_violation(snapshot_of(pool), caches), "");
}

}  // namespace mneme

// The drop after a decode step: a KV head that is over budget loses the tokens with the least attention, usually one.
// Tokens are bits of the head's pages, in order of their positions. One definition for host and device; keep_largest()
// of keep_rule.h is the specification.
#pragma once

#include <cstdint>

#include "src/cuda/host_device.h"

namespace mneme {

// Where a head's tokens are, and how many stay.
struct DropPlace {
  std::int32_t n_slots = 0;     // indices in the head's table in use: bits [0, n_slots) of its masks
  std::int32_t first_slot = 0;  // the tokens in slots below it stay: sinks
  std::int32_t recent = 0;      // the last tokens, which stay
  std::int32_t keep = 0;        // tokens that stay in all
};

MNEME_HOST_DEVICE std::int32_t count_bits(std::uint32_t word) {
#ifdef __CUDA_ARCH__
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}

// Ascends in the order in which tokens are dropped: NaN, then the least score, among equal ones the oldest.
MNEME_HOST_DEVICE std::uint64_t drop_key(float score, std::int32_t slot) {
  const float v = score + 0.0f;  // -0 + 0 = +0
#ifdef __CUDA_ARCH__
  const std::uint32_t bits = __float_as_uint(v);
#else
  const auto bits = __builtin_bit_cast(std::uint32_t, v);
#endif
  const std::uint32_t ordered = v != v ? 0u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return std::uint64_t{ordered} << 32 | static_cast<std::uint32_t>(slot);
}

// Tokens that a head of n tokens keeps; first: tokens in slots below first_slot.
MNEME_HOST_DEVICE std::int32_t kept_of(std::int32_t n, std::int32_t first, std::int32_t recent, std::int32_t keep) {
  if (n <= keep) return n;
  const std::int32_t sinks = first < n ? first : n, rest = n - sinks, window = recent < rest ? recent : rest;
  return keep > sinks + window ? keep : sinks + window;
}

// Calls clear(slot) for every token that is dropped and returns their number. Called by all threads of `team`:
//
//   team   rank(), size(), and over all threads sum(n), least(key)
//   masks  bit i of word i / 32: slot i holds a token
//   score  score(slot), of slots with a token
//   clear  clears the slot's bit; the team sees it when it returns
template <typename Team, typename Score, typename Clear>
MNEME_HOST_DEVICE std::int32_t drop_least(const Team& team, const std::uint32_t* masks, const DropPlace& place,
                                          Score&& score, Clear&& clear) {
  constexpr std::uint64_t kNone = ~std::uint64_t{0};
  const std::int32_t words = (place.n_slots + 31) / 32;
  const auto stored_from = [&](std::int32_t from) {
    std::int32_t n = 0;
    for (std::int32_t w = from / 32 + team.rank(); w < words; w += team.size()) {
      std::uint32_t there = masks[w];
      if (w == from / 32) there &= ~0u << from % 32;
      if (place.n_slots - w * 32 < 32) there &= ~(~0u << (place.n_slots - w * 32));
      n += count_bits(there);
    }
    return team.sum(n);
  };
  const std::int32_t excess = stored_from(0) - place.keep;
  if (excess <= 0) return 0;
  // The window has no holes unless tokens were dropped otherwise. Slots hold a token at most, so that the last step
  // down ends at its first token.
  std::int32_t end = place.n_slots - place.recent;
  if (end < place.first_slot) end = place.first_slot;
  for (std::int32_t n = stored_from(end); n < place.recent && end > place.first_slot; n = stored_from(end)) {
    end -= place.recent - n;
    if (end < place.first_slot) end = place.first_slot;
  }
  for (std::int32_t dropped = 0; dropped < excess; ++dropped) {
    std::uint64_t key = kNone;
    for (std::int32_t slot = place.first_slot + team.rank(); slot < end; slot += team.size()) {
      if ((masks[slot / 32] >> slot % 32 & 1u) == 0) continue;
      const std::uint64_t other = drop_key(score(slot), slot);
      if (other < key) key = other;
    }
    key = team.least(key);
    if (key == kNone) return dropped;
    clear(static_cast<std::int32_t>(key & 0xffffffffu));
  }
  return excess;
}

}  // namespace mneme

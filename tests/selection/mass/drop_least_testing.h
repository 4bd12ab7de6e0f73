// Heads of a layer that are over budget, at random, and what keep_largest() leaves of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "src/base/size32.h"
#include "src/selection/mass/drop_least.h"
#include "src/selection/mass/keep_rule.h"

namespace mneme::testing {

// A head with holes in its table.
struct DropHead {
  DropPlace place;
  std::vector<std::uint32_t> masks;  // bits behind the last slot are set
  std::vector<float> scores;         // by slot

  bool there(std::int32_t slot) const { return (masks[slot / 32] >> slot % 32 & 1u) != 0; }
  std::vector<std::int32_t> slots() const {
    std::vector<std::int32_t> all;
    for (std::int32_t s = 0; s < place.n_slots; ++s)
      if (there(s)) all.push_back(s);
    return all;
  }
};

// Scores are small integers, with ties, zeros of both signs and a few NaN.
inline float drawn_score(std::mt19937& rng) {
  const auto v = rng() % 24;
  return v == 0 ? std::nanf("") : v == 1 ? -0.0f : static_cast<float>(v % 8);
}

// At most 3 tokens over the budget, or at it or below. Windows and sinks may be all, and more than the budget.
inline DropHead drawn_head(std::mt19937& rng, std::int32_t most_slots) {
  DropHead head;
  const auto below = [&](std::int32_t n) { return static_cast<std::int32_t>(rng() % static_cast<unsigned>(n)); };
  DropPlace& place = head.place;
  place.n_slots = 1 + below(most_slots);
  head.masks.assign((place.n_slots + 31) / 32 + 1, ~0u);
  const int holes = below(4);
  for (std::int32_t s = 0; s < place.n_slots; ++s)
    if (below(8) < holes) head.masks[s / 32] &= ~(1u << s % 32);
  for (std::int32_t s = 0; s < place.n_slots; ++s) head.scores.push_back(drawn_score(rng));
  const std::int32_t n = size32(head.slots());
  const auto part = [&] { return below(4) == 0 ? n + 2 : below(n / 2 + 2); };
  place.first_slot = below(2) == 0 ? 0 : below(place.n_slots + 3);
  place.recent = part();
  place.keep = std::max(0, n - below(5) + 1);
  return head;
}

// The slots that stay, by the CPU's rule over ranks.
inline std::vector<std::int32_t> kept_slots(const DropHead& head) {
  const std::vector<std::int32_t> slots = head.slots();
  std::vector<float> scores;
  std::int32_t sinks = 0;
  for (const std::int32_t s : slots) {
    scores.push_back(head.scores[s]);
    sinks += s < head.place.first_slot ? 1 : 0;
  }
  KeepScratch scratch;
  std::vector<TokenRange> kept;
  keep_largest(scores, sinks, head.place.recent, head.place.keep, scratch, kept);
  std::vector<std::int32_t> out;
  for (const TokenRange& r : kept)
    for (std::int32_t rank = r.begin; rank < r.end; ++rank) out.push_back(slots[rank]);
  return out;
}

}  // namespace mneme::testing

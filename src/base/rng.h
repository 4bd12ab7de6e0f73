// Counter-based random number generator: the n-th draw of a seed is a pure function of both, so a forked or restored
// request continues the same stream.
//
// Source  SplitMix64's finaliser (Steele, Lea, Flood 2014) over seed and counter.
#pragma once

#include <cstdint>

namespace mneme {

class Rng {
 public:
  explicit Rng(std::uint64_t seed, std::uint64_t counter = 0) : seed_(seed), counter_(counter) {}

  // The stream of one of a seed's items: its first 2^32 draws are no other item's.
  static Rng of_item(std::uint64_t seed, std::uint64_t item) { return Rng(seed, item << 32); }

  std::uint64_t next() { return mix(mix(seed_ + 0x9e3779b97f4a7c15ull) + 0x9e3779b97f4a7c15ull * ++counter_); }
  // Uniform in [0, 1) with 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  // Uniform in [0, n), n >= 1.
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }
  // Standard normal (Box-Muller; one of the pair is used).
  double normal();

  std::uint64_t seed() const { return seed_; }
  std::uint64_t counter() const { return counter_; }

 private:
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::uint64_t seed_;
  std::uint64_t counter_;
};

}  // namespace mneme

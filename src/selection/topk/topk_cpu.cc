// Top-k of a row: a threshold from a sample leaves few candidates in one pass over the row, quickselect over their
// integer keys finds the k-th, and a pass over the candidates writes the ids in order.
//
// Keys are the scores' bits in an order-preserving form as signed integers: -0 becomes +0, negatives have their lower
// 31 bits flipped, NaN is the smallest integer.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"
#include "src/selection/topk/topk.h"

#ifndef MNEME_KERNELS_TOPK_CPU_ONCE_
#define MNEME_KERNELS_TOPK_CPU_ONCE_
namespace mneme {

// For each mask of 8 lanes: the set lanes in order, then the others.
inline constexpr auto kLanesOfMask = [] {
  std::array<std::array<std::uint8_t, 8>, 256> table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    std::size_t n = 0;
    for (const unsigned held : {1u, 0u})
      for (unsigned lane = 0; lane < 8; ++lane)
        if ((mask >> lane & 1u) == held) table[mask][n++] = static_cast<std::uint8_t>(lane);
  }
  return table;
}();

}  // namespace mneme
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/topk/topk_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Ints = hn::ScalableTag<std::int32_t>;

inline constexpr std::int32_t kNanKey = std::numeric_limits<std::int32_t>::min();

template <class V>
HWY_INLINE hn::Vec<Ints> keys_of(V x) {
  const Floats d;
  const Ints di;
  const auto bits = hn::BitCast(di, hn::Add(x, hn::Zero(d)));  // -0 + 0 = +0
  const auto low =
      hn::BitCast(di, hn::ShiftRight<1>(hn::BitCast(hn::RebindToUnsigned<Ints>(), hn::BroadcastSignBit(bits))));
  return hn::IfThenElse(hn::RebindMask(di, hn::Eq(x, x)), hn::Xor(bits, low), hn::Set(di, kNanKey));
}

HWY_INLINE std::int32_t key_of(float x) {
  if (!(x == x)) return kNanKey;
  x += 0.0f;
  std::int32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits ^ static_cast<std::int32_t>(static_cast<std::uint32_t>(bits >> 31) >> 1);
}

// Moves the lanes of mask to the front.
HWY_INLINE hn::Vec<Ints> compress(hn::Vec<Ints> v, hn::Mask<Ints> mask) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  // Highway 1.0.3 uses its own table here, which GCC 12 copies to the stack at every call: 20 times slower.
  const hn::RebindToUnsigned<Ints> du;
  std::uint8_t bits[8];
  hn::StoreMaskBits(Ints(), mask, bits);
  const auto* lanes = kLanesOfMask[bits[0]].data();
  const auto indices = hn::PromoteTo(du, hn::LoadU(hn::Rebind<std::uint8_t, Ints>(), lanes));
  return hn::TableLookupLanes(v, hn::IndicesFromVec(Ints(), indices));
#else
  return hn::Compress(v, mask);
#endif
}

// Keys and ids of a row's candidates in order of id, with room for one more vector.
struct Candidates {
  std::int32_t* keys;
  std::int32_t* ids;
  std::size_t n = 0;
};

HWY_INLINE void store_selected(hn::Vec<Ints> keys, hn::Vec<Ints> ids, hn::Mask<Ints> mask, Candidates& out) {
  const Ints di;
  // Compress and a full store: compress-store is microcoded on some cores.
  hn::StoreU(compress(keys, mask), di, out.keys + out.n);
  hn::StoreU(compress(ids, mask), di, out.ids + out.n);
  out.n += hn::CountTrue(di, mask);
}

// Collects the scores >= least, or all.
HWY_INLINE void gather_candidates(const float* scores, std::size_t n, float least, bool all, Candidates& out) {
  const Floats d;
  const Ints di;
  const std::size_t lanes = hn::Lanes(d);
  const auto threshold = hn::Set(d, least);
  auto ids = hn::Iota(di, 0);
  const auto step = hn::Set(di, static_cast<std::int32_t>(lanes));
  std::size_t i = 0;
  if (all) {
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(keys_of(hn::LoadU(d, scores + i)), di, out.keys + i);
      hn::StoreU(ids, di, out.ids + i);
      ids = hn::Add(ids, step);
    }
    out.n = i;
  } else {
    for (; i + lanes <= n; i += lanes) {
      const auto x = hn::LoadU(d, scores + i);
      const auto mask = hn::RebindMask(di, hn::Ge(x, threshold));
      if (!hn::AllFalse(di, mask)) store_selected(keys_of(x), ids, mask, out);
      ids = hn::Add(ids, step);
    }
  }
  for (; i < n; ++i) {
    if (!all && !(scores[i] >= least)) continue;
    out.keys[out.n] = key_of(scores[i]);
    out.ids[out.n] = static_cast<std::int32_t>(i);
    ++out.n;
  }
}

// Result of selecting the r-th largest key.
struct Threshold {
  std::int32_t key = 0;
  std::size_t above = 0;  // keys greater than it
  std::size_t equal = 0;
};

// Counts keys greater than `pivot`, and at least it. Requires  `keys` padded to full vectors with the smallest integer,
// n the padded count; so with the smallest pivot the second count includes the padding.
HWY_INLINE void count_keys(const std::int32_t* keys, std::size_t n, std::int32_t pivot, std::size_t& above,
                           std::size_t& at_least) {
  const Ints di;
  const auto p = hn::Set(di, pivot);
  above = 0;
  std::size_t below = 0;
  for (std::size_t i = 0; i < n; i += hn::Lanes(di)) {
    const auto x = hn::LoadU(di, keys + i);
    above += hn::CountTrue(di, hn::Gt(x, p));
    below += hn::CountTrue(di, hn::Lt(x, p));
  }
  at_least = n - below;
}

// Picks, among 15 samples of `keys`, the one whose rank corresponds to rank r of n.
HWY_INLINE std::int32_t pick_pivot(const std::int32_t* keys, std::size_t n, std::size_t r) {
  constexpr std::size_t kSample = 15;
  std::int32_t sample[kSample];
  for (std::size_t i = 0; i < kSample; ++i) {
    const std::int32_t key = keys[(2 * i + 1) * n / (2 * kSample)];
    std::size_t j = i;
    for (; j > 0 && sample[j - 1] < key; --j) sample[j] = sample[j - 1];
    sample[j] = key;
  }
  return sample[std::min(kSample - 1, r * kSample / n)];
}

// Splits keys around a pivot: greater ones stay in `keys`, smaller ones go to `rest`.
HWY_INLINE void partition(std::int32_t* keys, std::size_t n, std::int32_t pivot, std::int32_t* rest, std::size_t& above,
                          std::size_t& below) {
  const Ints di;
  const std::size_t lanes = hn::Lanes(di);
  const auto p = hn::Set(di, pivot);
  above = below = 0;
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto x = hn::LoadU(di, keys + i);
    const auto gt = hn::Gt(x, p);
    const auto lt = hn::Lt(x, p);
    hn::StoreU(compress(x, gt), di, keys + above);
    hn::StoreU(compress(x, lt), di, rest + below);
    above += hn::CountTrue(di, gt);
    below += hn::CountTrue(di, lt);
  }
  for (const std::int32_t x : std::span<const std::int32_t>(keys + i, n - i)) {
    if (x > pivot) keys[above++] = x;
    if (x < pivot) rest[below++] = x;
  }
}

// The r-th largest (r >= 1) of n >= r keys. Overwrites keys and rest, both with room for n plus one vector.
HWY_INLINE Threshold select_key(std::int32_t* keys, std::int32_t* rest, std::size_t n, std::size_t r) {
  const Ints di;
  const std::size_t lanes = hn::Lanes(di);
  constexpr std::size_t kSmall = 64;
  constexpr int kSampled = 20;  // rounds by sample; then the key range is halved, which bounds any input to 52 rounds
  std::int64_t least = std::numeric_limits<std::int32_t>::min();
  std::int64_t greatest = std::numeric_limits<std::int32_t>::max();
  std::size_t passed = 0;  // keys known to be above the result
  for (int round = 0; n > kSmall; ++round) {
    const std::int32_t pivot =
        round < kSampled ? pick_pivot(keys, n, r) : static_cast<std::int32_t>(least + (greatest - least) / 2);
    std::size_t above, below;
    partition(keys, n, pivot, rest, above, below);
    if (r <= above) {
      n = above;
      least = std::int64_t{pivot} + 1;
    } else if (r <= n - below) {
      return {pivot, passed + above, n - below - above};
    } else {
      r -= n - below;
      passed += n - below;
      n = below;
      greatest = std::int64_t{pivot} - 1;
      std::swap(keys, rest);
    }
  }
  const std::size_t padded = (n + lanes - 1) / lanes * lanes;
  hn::StoreU(hn::Set(di, kNanKey), di, keys + n);
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t above, at_least;
    count_keys(keys, padded, keys[i], above, at_least);
    if (above >= r || at_least < r) continue;
    if (keys[i] == kNanKey) at_least -= padded - n;
    return {keys[i], passed + above, at_least - above};
  }
  MNEME_CHECK(false, "no key of rank {} among {}", r, n);
}

// A lower bound of the k-th largest score that holds for nearly all rows: from a sample, 3.5 standard deviations of its
// rank lower.
HWY_INLINE float sample_bound(const float* scores, std::size_t n, std::size_t k, std::int32_t* keys,
                              std::int32_t* rest) {
  const std::size_t m = std::clamp<std::size_t>(n / 32, 512, 4096);
  std::uint32_t state = 0x9e3779b9u;
  for (std::size_t i = 0; i < m; ++i) {
    state = state * 1664525u + 1013904223u;
    const std::uint64_t cell = n / m;  // one score per cell, so that periodic rows are sampled fairly
    keys[i] = key_of(scores[i * n / m + ((state >> 8) * cell >> 24)]);
  }
  const double p = ratio(k, n);
  const double rank = p * real(m);
  const double slack = 3.5 * std::sqrt(rank * (1.0 - p)) + 2.0;
  const auto r = static_cast<std::size_t>(rank + slack);
  if (r >= m) return std::numeric_limits<float>::quiet_NaN();
  const std::int32_t key = select_key(keys, rest, m, r).key;
  if (key == kNanKey) return std::numeric_limits<float>::quiet_NaN();
  const std::int32_t bits = key ^ static_cast<std::int32_t>(static_cast<std::uint32_t>(key >> 31) >> 1);
  float bound;
  std::memcpy(&bound, &bits, sizeof(bound));
  return bound;
}

// Writes ids of the candidates above the threshold and of its last `wanted` equals, exactly k.
HWY_INLINE void write_ids(const Candidates& c, const Threshold& t, std::size_t k, std::int32_t* ids) {
  const Ints di;
  const std::size_t lanes = hn::Lanes(di);
  std::size_t skip = t.above + t.equal - k;  // equals with the smallest ids, left out
  std::size_t n = 0;
  std::size_t i = 0;
  const auto put = [&](std::size_t at) {
    const bool equal = c.keys[at] == t.key;
    if (equal && skip > 0) {
      --skip;
    } else if (equal || c.keys[at] > t.key) {
      ids[n++] = c.ids[at];
    }
  };
  const auto key = hn::Set(di, t.key);
  // Stores full vectors: only while they fit, and while no equal is left out.
  for (; i + lanes <= c.n && n + lanes <= k; i += lanes) {
    const auto x = hn::LoadU(di, c.keys + i);
    auto mask = hn::Not(hn::Gt(key, x));
    if (skip > 0) {
      const std::size_t equal = hn::CountTrue(di, hn::Eq(x, key));
      if (equal > skip) {
        for (std::size_t j = 0; j < lanes; ++j) put(i + j);
        continue;
      }
      skip -= equal;
      mask = hn::Gt(x, key);
    }
    hn::StoreU(compress(hn::LoadU(di, c.ids + i), mask), di, ids + n);
    n += hn::CountTrue(di, mask);
  }
  for (; i < c.n && n < k; ++i) put(i);
  MNEME_CHECK(n == k, "{} ids of {}", n, k);
}

// Requires  0 < k < n; ids and keys with room for n + lanes, work and rest likewise.
void topk_row(const float* scores, std::size_t n, std::size_t k, std::int32_t* out, std::int32_t* keys,
              std::int32_t* ids, std::int32_t* work, std::int32_t* rest) {
  constexpr std::size_t kSampled = 2048;  // below, all scores of a row are candidates
  Candidates c{keys, ids};
  if (n >= kSampled) {
    const float bound = sample_bound(scores, n, k, work, rest);
    if (bound == bound) gather_candidates(scores, n, bound, false, c);
  }
  if (c.n < k) {
    c.n = 0;
    gather_candidates(scores, n, 0.0f, true, c);
  }
  std::memcpy(work, c.keys, c.n * sizeof(*work));
  write_ids(c, select_key(work, rest, c.n, k), k, out);
}

std::size_t lanes() {
  return hn::Lanes(Ints());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(topk_row);
HWY_EXPORT(lanes);

}  // namespace

std::int32_t topk_cpu(std::span<const float> scores, std::int32_t k, std::int32_t* ids, TopkScratch& scratch) {
  MNEME_CHECK(k >= 0, "k = {}", k);
  const std::size_t n = scores.size();
  const std::size_t wanted = k;
  if (wanted >= n) {
    std::iota(ids, ids + n, 0);
    return count32(n);
  }
  if (wanted == 0) return 0;
  const std::size_t room = n + HWY_DYNAMIC_DISPATCH(lanes)();
  if (scratch.words.size() < 3 * room) scratch.words.resize(3 * room);
  if (scratch.candidates.size() < room) scratch.candidates.resize(room);
  auto* keys = reinterpret_cast<std::int32_t*>(scratch.words.data());
  HWY_DYNAMIC_DISPATCH(topk_row)
  (scores.data(), n, wanted, ids, keys, scratch.candidates.data(), keys + room, keys + 2 * room);
  return k;
}

}  // namespace mneme
#endif

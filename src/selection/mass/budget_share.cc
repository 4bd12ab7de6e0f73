#include "src/selection/mass/budget_share.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

struct Ranked {
  float score;
  std::int32_t head, token;
};

// The n best of all: NaN ranks below -inf.
void keep_best(std::vector<Ranked>& all, std::int64_t n) {
  const auto better = [](const Ranked& a, const Ranked& b) {
    const bool a_nan = std::isnan(a.score), b_nan = std::isnan(b.score);
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && a.score != b.score) return a.score > b.score;
    return a.head != b.head ? a.head > b.head : a.token > b.token;
  };
  n = std::min(n, std::ssize(all));
  std::nth_element(all.begin(), all.begin() + n, all.end(), better);
  all.resize(n);
}

// One token after the other to those below their caps, the lowest first, round after round.
void give_in_turn(std::int64_t left, std::span<const std::int32_t> cap, std::vector<std::int32_t>& keeps) {
  while (left > 0) {
    std::vector<std::size_t> open;
    std::int64_t least = left;  // room of the one nearest to its cap
    for (std::size_t l = 0; l < keeps.size(); ++l) {
      if (keeps[l] >= cap[l]) continue;
      open.push_back(l);
      least = std::min<std::int64_t>(least, cap[l] - keeps[l]);
    }
    if (open.empty()) return;
    const std::int64_t rounds = std::min(least, left / std::ssize(open));
    if (rounds == 0) open.resize(std::min<std::int64_t>(left, std::ssize(open)));
    for (const std::size_t l : open) keeps[l] += static_cast<std::int32_t>(std::max<std::int64_t>(rounds, 1));
    left -= std::max<std::int64_t>(rounds, 1) * std::ssize(open);
  }
}

}  // namespace

std::int32_t pyramid_keep(const PyramidShare& share, std::int32_t budget, std::int32_t recent, std::int32_t n,
                          const LayerPlace& place) {
  const std::int32_t b = budget - recent;
  if (n < 2 * b || place.n_layers < 2) return budget;
  std::int32_t lo = b / share.beta, hi = 2 * b - lo;
  if (hi >= n - recent) hi = n - recent, lo = 2 * b - hi;
  return hi - place.number * ((hi - lo) / (place.n_layers - 1)) + recent;
}

std::vector<std::int32_t> preference_keeps(std::span<const double> preference, std::span<const std::int32_t> cap,
                                           std::int64_t total) {
  const std::size_t n = preference.size();
  std::vector<double> p(preference.begin(), preference.end());
  double sum = std::accumulate(p.begin(), p.end(), 0.0);
  if (!std::isfinite(sum) || sum <= 0) std::fill(p.begin(), p.end(), 1.0), sum = real(n);
  std::vector<std::int32_t> keeps(n);
  std::int64_t excess = 0, given = 0;
  for (std::size_t l = 0; l < n; ++l) {
    const auto share = static_cast<std::int64_t>(p[l] / sum * real(total));
    keeps[l] = static_cast<std::int32_t>(std::min<std::int64_t>(share, cap[l]));
    excess += share - keeps[l];
    given += share;
  }
  give_in_turn(excess, cap, keeps);
  give_in_turn(total - given, cap, keeps);
  return keeps;
}

std::vector<std::int32_t> head_keeps(const HeadShare& share, std::span<const std::span<const float>> scores,
                                     std::int32_t b) {
  const auto least = static_cast<std::int32_t>(share.floor * static_cast<float>(b));
  const std::int64_t total = std::ssize(scores) * b;
  std::vector<std::int32_t> keeps(scores.size(), 0);
  std::vector<Ranked> all;
  for (std::size_t h = 0; h < scores.size(); ++h) {
    std::vector<Ranked> head;
    for (std::size_t t = 0; t < scores[h].size(); ++t) head.push_back({scores[h][t], count32(h), count32(t)});
    if (share.exact) {
      std::vector<Ranked> best = head;
      keep_best(best, least);
      keeps[h] = size32(best);
      std::vector<bool> taken(head.size(), false);
      for (const Ranked& r : best) taken[r.token] = true;
      std::erase_if(head, [&](const Ranked& r) { return taken[r.token]; });
    }
    all.insert(all.end(), head.begin(), head.end());
  }
  std::int64_t left = total;
  for (const std::int32_t n : keeps) left -= n;
  keep_best(all, left);
  std::vector<std::int32_t> counts(scores.size(), 0);
  for (const Ranked& r : all) ++counts[r.head];
  for (std::size_t h = 0; h < scores.size(); ++h) {
    const float even = (1.0f - share.floor) * static_cast<float>(counts[h]) + static_cast<float>(least);
    keeps[h] = share.exact ? keeps[h] + counts[h] : static_cast<std::int32_t>(std::nearbyint(even));
  }
  return keeps;
}

}  // namespace mneme

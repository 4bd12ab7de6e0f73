#include "src/selection/layer/entropy_cut.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme {

double score_entropy(std::span<const float> scores) {
  if (scores.empty()) return 0;
  double top = scores[0], sum = 0, weighted = 0;
  for (float s : scores) top = std::max(top, double{s});
  for (float s : scores) {
    const double x = s - top, p = std::exp(x);
    sum += p;
    weighted += p * x;
  }
  return std::log(sum) - weighted / sum;
}

EntropyCut::EntropyCut(std::int32_t n_layers, std::int32_t k, bool reversed)
    : k_(k), reversed_(reversed), history_(n_layers) {}

double EntropyCut::mean_entropy(std::int32_t layer) const {
  const History& h = history_[layer];
  const std::int64_t n = std::min<std::int64_t>(h.n, kHistory);
  if (n == 0) return 1;
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += h.last[i];
  return ratio(sum, n);
}

// Reversed by 1 / x, not 1 - x: entropies are so near 1 that subtraction would be all or nothing.
double EntropyCut::share(double entropy) const {
  return reversed_ ? 1 / std::max(entropy, 1e-6) : entropy;
}

double EntropyCut::later(std::int32_t layer) const {
  double sum = 0;
  for (std::int32_t j = layer + 1; j < size32(history_); ++j) sum += share(mean_entropy(j));
  return sum;
}

void EntropyCut::add(std::int32_t layer, double entropy) {
  History& h = history_[layer];
  h.last[h.n % kHistory] = entropy;
  ++h.n;
}

std::int32_t EntropyCut::take(std::size_t slot, std::int32_t layer, double entropy, std::int32_t n_units) {
  const auto n_layers = size32(history_);
  MNEME_CHECK(layer >= 0 && layer < n_layers && n_units >= 0, "layer {} of {}", layer, n_layers);
  if (pools_.size() <= slot) pools_.resize(slot + 1);
  double& pool = pools_[slot];
  if (layer == 0) pool = real(n_layers) * k_;
  if (n_units == 0) return 0;
  double theta = n_units < 2 ? 0 : entropy / std::log(n_units);
  if (std::isnan(theta)) theta = 1;
  const double rest = later(layer);
  const double mine = share(theta), part = mine + rest > 0 ? mine / (mine + rest) : 1;
  const std::int32_t low = least(k_), left = n_layers - 1 - layer;
  // The minimum of the later layers stays in the pool, so that a step never exceeds it.
  const auto room = static_cast<std::int32_t>(pool) - left * low;
  const std::int32_t high = std::clamp(room, low, most(k_));
  const auto units = std::min(n_units, std::clamp(static_cast<std::int32_t>(std::lround(part * pool)), low, high));
  pool -= units;
  add(layer, theta);
  return units;
}

void EntropyCut::write(ByteWriter& out) const {
  for (const History& h : history_) {
    out.put(h.n);
    out.put_all(h.last);
  }
}

void EntropyCut::read(ByteReader& in) {
  for (History& h : history_) {
    h.n = in.read<std::int64_t>("number of entropies");
    in.fill(std::span(h.last), "entropies of a layer");
    if (h.n < 0) fail(ErrorKind::kFormat, "{} entropies of a layer", h.n);
    // An even spread is 1 up to rounding.
    for (double x : h.last)
      if (!(x >= -1e-6 && x <= 1 + 1e-6)) fail(ErrorKind::kFormat, "entropy {} of a layer, expected 0 to 1", x);
  }
}

std::size_t EntropyCut::bytes() const {
  return history_.size() * (sizeof(History) + kHistory * sizeof(double)) + pools_.capacity() * sizeof(double);
}

}  // namespace mneme

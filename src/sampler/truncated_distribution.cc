#include "src/sampler/truncated_distribution.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/sampler/fast_exp.h"

namespace mneme {
namespace {

constexpr float kBinsPerNat = 16.0f;
constexpr std::size_t kBins = 87 * 16 + 1;  // weights end at e^-87

// Bin of a token by its distance from the largest logit, in units of the temperature; NaN in the last bin.
std::size_t bin_of(float logit, float max, float temperature) {
  const float depth = (max - logit) / temperature * kBinsPerNat;
  return depth < static_cast<float>(kBins - 1) ? static_cast<std::size_t>(depth) : kBins - 1;
}

float without_nan(float x) {
  return x == x ? x : -std::numeric_limits<float>::infinity();
}

// Descending logits, equal ones by id.
struct Likelier {
  std::span<const float> logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = without_nan(logits[a]);
    const float y = without_nan(logits[b]);
    return x > y || (x == y && a < b);
  }
};

}  // namespace

void TruncatedDistribution::select(std::span<const float> logits, float max, const SamplingOptions& options) {
  const std::size_t n = logits.size();
  weights_.resize(n);
  const float temperature = options.temperature;
  for (std::size_t i = 0; i < n; ++i) weights_[i] = exp_below_zero((logits[i] - max) / temperature);

  const std::size_t k = options.top_k;
  if (k > 0 && k < n) {
    keep_top_k(logits, k);
  } else {
    ids_.resize(n);
    std::iota(ids_.begin(), ids_.end(), 0);
  }
  if (options.top_p < 1) {
    keep_top_p(logits, max, temperature, options.top_p * (1 - kShareSlack));
  }
  if (options.min_p > 0) {
    const double least = options.min_p * (1 - kShareSlack);
    std::erase_if(ids_, [&](std::int32_t id) { return weight(id) < least; });
  }
}

// One pass with a buffer of 2 k: tokens that cannot be among the k largest so far cost one comparison.
void TruncatedDistribution::keep_top_k(std::span<const float> logits, std::size_t k) {
  const Likelier likelier{logits};
  const std::size_t room = std::max<std::size_t>(2 * k, 64);
  scratch_.clear();
  bool full = false;  // k were found; `least` is the k-th largest so far
  float least = 0;
  const auto shrink = [&] {
    if (scratch_.size() <= k) return;
    std::nth_element(scratch_.begin(), scratch_.begin() + k - 1, scratch_.end(), likelier);
    scratch_.resize(k);
    least = without_nan(logits[scratch_.back()]);
    full = true;
  };
  for (std::size_t i = 0; i < logits.size(); ++i) {
    // Ids increase, so an equal logit never displaces an earlier one. Not "x <= least": that is false for NaN.
    if (full && !(logits[i] > least)) continue;
    scratch_.push_back(count32(i));
    if (scratch_.size() >= room) shrink();
  }
  shrink();
  ids_.swap(scratch_);
  std::sort(ids_.begin(), ids_.end());
}

// A histogram of the weights finds the bin in which the share is reached; only that bin is sorted.
void TruncatedDistribution::keep_top_p(std::span<const float> logits, float max, float temperature, double share) {
  const auto bin = [&](std::int32_t id) { return bin_of(logits[id], max, temperature); };
  bins_.assign(kBins, 0.0);
  for (std::int32_t id : ids_) bins_[bin(id)] += weight(id);
  const double target = share * std::accumulate(bins_.begin(), bins_.end(), 0.0);

  double reached = 0;  // by the bins before `cut`
  std::size_t cut = 0;
  while (cut + 1 < kBins && reached + bins_[cut] < target) reached += bins_[cut++];

  scratch_.clear();  // tokens of bin `cut`
  std::vector<std::int32_t>& inside = scratch_;
  for (std::int32_t id : ids_) {
    if (bin(id) == cut) inside.push_back(id);
  }
  std::sort(inside.begin(), inside.end(), Likelier{logits});
  std::size_t n = 0;
  while (n < inside.size() && (reached < target || (cut == 0 && n == 0))) reached += weight(inside[n++]);
  inside.resize(n);
  std::sort(inside.begin(), inside.end());
  std::erase_if(ids_, [&](std::int32_t id) {
    const std::size_t b = bin(id);
    return b > cut || (b == cut && !std::binary_search(inside.begin(), inside.end(), id));
  });
}

std::int32_t TruncatedDistribution::at(double u) const {
  MNEME_CHECK(!ids_.empty(), "no token survived");
  double total = 0;
  for (std::int32_t id : ids_) total += weight(id);
  const double target = u * total;
  double reached = 0;
  std::int32_t last = ids_.front();
  for (std::int32_t id : ids_) {
    if (!(weight(id) > 0)) continue;
    last = id;
    reached += weight(id);
    if (reached > target) break;
  }
  return last;
}

}  // namespace mneme

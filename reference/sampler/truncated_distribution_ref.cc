#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "src/sampler/truncated_distribution.h"

namespace mneme {

std::vector<TokenWeight> truncated_distribution_ref(std::span<const float> logits, const SamplingOptions& options) {
  std::vector<double> x(logits.begin(), logits.end());
  for (double& v : x) {
    if (std::isnan(v)) v = -std::numeric_limits<double>::infinity();
  }
  const double max = *std::max_element(x.begin(), x.end());
  const auto weight = [&](std::int32_t id) { return std::exp((x[id] - max) / options.temperature); };

  std::vector<std::int32_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) { return x[a] > x[b]; });
  if (options.top_k > 0) ids.resize(std::min<std::size_t>(ids.size(), options.top_k));

  if (options.top_p < 1) {
    double all = 0, reached = 0;
    for (std::int32_t id : ids) all += weight(id);
    std::size_t n = 0;
    do {
      reached += weight(ids[n++]);
    } while (n < ids.size() && reached < options.top_p * all * (1 - kShareSlack));
    ids.resize(n);
  }
  std::erase_if(ids, [&](std::int32_t id) { return weight(id) < options.min_p * (1 - kShareSlack); });

  std::sort(ids.begin(), ids.end());
  std::vector<TokenWeight> out;
  for (std::int32_t id : ids) out.push_back({id, weight(id)});
  return out;
}

}  // namespace mneme

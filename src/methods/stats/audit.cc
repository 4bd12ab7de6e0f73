#include "src/methods/stats/audit.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme {

AuditedHead audit_head(std::span<const float> probabilities, std::int32_t n_heads,
                       std::span<const std::uint8_t> attended, std::int64_t n_attended, AuditScratch& scratch) {
  const std::size_t n = attended.size();
  MNEME_CHECK(std::cmp_equal(probabilities.size(), n * n_heads), "{} probabilities of {} heads, {} tokens",
              probabilities.size(), n_heads, n);
  scratch.pooled.assign(n, 0.0f);
  scratch.top.resize(n);
  double mass = 0;
  for (std::int32_t g = 0; g < n_heads; ++g)
    for (std::size_t t = 0; t < n; ++t) {
      const float p = probabilities[g * n + t];
      scratch.pooled[t] += p;
      if (attended[t] != 0) mass += p;
    }
  const std::int32_t found = topk_cpu(scratch.pooled, count32(n_attended), scratch.top.data(), scratch.topk);
  std::int64_t hits = 0;
  for (std::int32_t i = 0; i < found; ++i) hits += attended[scratch.top[i]] != 0 ? 1 : 0;
  return {.recall = ratio(hits, std::max(1, found)), .mass = mass / n_heads};
}

}  // namespace mneme

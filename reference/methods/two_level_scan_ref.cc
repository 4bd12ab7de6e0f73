#include "reference/methods/decode_attention_ref.h"

#include <algorithm>
#include <cmath>

#include "reference/methods/summary_scores_ref.h"
#include "src/selection/topk/keep_groups.h"

namespace mneme {

// A scan in two levels (keep_groups.h): -inf to the units that it does not score in full.
void ReferenceLayer::scan(const SequenceCache& cache, const Region& region, std::int32_t selection_head, const float* q,
                          std::vector<std::vector<double>>& scores) const {
  const std::int32_t kv_head = plan_->by_query_head() ? selection_head / plan_->shape.group() : selection_head;
  const std::int32_t n = region.last_unit - region.first_unit;
  if (std::int64_t{n} * plan_->rules.unit_tokens <= plan_->two_level->from) return;
  const Queries queries = probes(selection_head, q);
  const UnitGroups groups{region.first_unit, region.last_unit, selects_by_summary(*plan_) ? 1 : 16};
  std::vector<std::vector<double>> coarse(queries.size());
  if (groups.each == 1) {
    coarse = summary_scores_ref(*plan_, cache, layer_, kv_head, region, queries, true);
  } else {
    const std::vector<Tokens> units = candidates(cache, region, kv_head);
    for (std::int32_t i = 0; i < groups.size(); ++i) {
      Tokens all;
      for (std::int32_t u = region.first_unit; u < region.last_unit; ++u)
        if (u / groups.each == groups.first() + i)
          all.insert(all.end(), units[u - region.first_unit].begin(), units[u - region.first_unit].end());
      const std::vector<double> bounds = unit_scores(cache, kv_head, all, queries);
      for (std::size_t h = 0; h < queries.size(); ++h) coarse[h].push_back(bounds[h]);
    }
  }
  for (std::size_t h = 0; h < queries.size(); ++h)
    if (plan_->selection.scores.domain == Domain::kAttention) coarse[h].push_back(scores[h].back());
  const std::vector<double> pooled = pool_scores(coarse);
  std::vector<float> of_groups(pooled.begin(), pooled.begin() + groups.size());
  std::vector<std::int32_t> kept;
  keep_groups_ref(of_groups, groups, plan_->two_level->share, region.n_select, kept);
  for (auto& row : scores)
    for (std::int32_t u = 0; u < n; ++u)
      if (std::find(kept.begin(), kept.end(), region.first_unit + u) == kept.end()) row[u] = -INFINITY;
}

}  // namespace mneme

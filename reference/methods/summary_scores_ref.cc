#include "reference/methods/summary_scores_ref.h"

#include "src/selection/summary/key_frame.h"
#include "src/selection/summary/moments.h"
#include "src/selection/summary/sketch.h"

namespace mneme {

bool selects_by_summary(const Plan& plan) {
  if (!plan.recipe.decode) return false;
  const Index& index = plan.recipe.decode->index;
  return std::holds_alternative<CentroidSet>(index) || std::holds_alternative<Sketch>(index) ||
         std::holds_alternative<Moments>(index);
}

std::vector<std::vector<double>> summary_scores_ref(const Plan& plan, const SequenceCache& cache, std::int32_t layer,
                                                    std::int32_t kv_head, const Region& region,
                                                    const std::vector<std::vector<double>>& queries) {
  const AttentionShape shape = plan.shape.attention();
  const UnitIndex& index = *plan.index;
  const std::int32_t page = index.entry_tokens(), p = plan.rules.unit_tokens;
  const std::int32_t complete = cache.length() / page, n_units = region.last_unit - region.first_unit;
  std::vector<float> frame(index.frame_floats(shape));
  if (complete > 0 && !frame.empty())
    index.fit({.cache = &cache, .layer = layer, .kv_head = kv_head}, KeyFrame::pages_for(complete), shape,
              frame.data());
  const std::size_t bytes = index.entry_bytes(shape);
  std::vector<std::byte> entries(bytes * complete);
  for (std::int32_t e = 0; e < complete; ++e) {
    std::vector<KvRun> runs;
    cache.append_runs(layer, kv_head, e * page, (e + 1) * page, runs);
    index.build_in(frame.data(), runs, shape, entries.data() + e * bytes);
  }
  const std::int32_t per_entry = page / p;
  std::vector<std::vector<double>> all;
  for (const auto& query : queries) {
    const std::vector<float> q(query.begin(), query.end());
    std::vector<float> scores(std::size_t{1} * complete * per_entry);
    const SummaryScores task{.q = q.data(),
                             .frame = frame.data(),
                             .entries = entries.data(),
                             .n = complete,
                             .group = 1,
                             .head_dim = plan.shape.head_dim,
                             .page = page,
                             .alpha = plan.selection.scores.alpha,
                             .scores = scores.data(),
                             .stride = 0};
    const Index& kind = plan.recipe.decode->index;
    if (const auto* set = std::get_if<CentroidSet>(&kind)) centroids_score_ref(task, set->k);
    const auto* sketch = std::get_if<Sketch>(&kind);
    if (sketch != nullptr) sketch_score_ref(task, sketch->rank, p == 1);
    if (std::holds_alternative<Moments>(kind)) moments_score_ref(task);
    all.emplace_back(scores.begin() + region.first_unit, scores.begin() + region.first_unit + n_units);
  }
  return all;
}

}  // namespace mneme

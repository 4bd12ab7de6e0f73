#include "src/methods/fixed_scores.h"

#include <algorithm>
#include <cmath>

namespace mneme {

void fixed_scores(const ScoreTask& task, const Region& region, ScoreScratch& scratch) {
  const std::int32_t length = task.head.cache->length();
  scratch.runs.clear();
  if (region.sink > 0) task.head.cache->append_runs(task.head.layer, task.head.kv_head, 0, region.sink, scratch.runs);
  // The region of the next step may begin its window at a token that is yet to come.
  const std::int32_t from = std::min(region.recent_from, length);
  if (from < length) task.head.cache->append_runs(task.head.layer, task.head.kv_head, from, length, scratch.runs);
  std::int64_t n = 0;
  for (const KvRun& run : scratch.runs) n += run.n_tokens;
  scratch.token_scores.resize(n * task.shape.group);
  key_score_cpu(task.q, task.shape, scratch.runs, scratch.token_scores.data(), n);
  for (std::int32_t g = 0; g < task.shape.group; ++g) {
    const float* scores = scratch.token_scores.data() + g * n;
    const float largest = n == 0 ? -INFINITY : *std::max_element(scores, scores + n);
    float sum = 0.0f;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(task.alpha * (scores[i] - largest));
    task.scores[g * task.score_stride] = n == 0 ? largest : largest + std::log(sum) / task.alpha;
  }
}

}  // namespace mneme

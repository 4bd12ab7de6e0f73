// What sinks and window weigh in a step's attention, for a softmax over all of it (Domain::kAttention).
#pragma once

#include <cstdint>

#include "src/kv/sequence_cache.h"
#include "src/selection/index/unit_index.h"
#include "src/selection/region/region.h"

namespace mneme {

// log(sum of exp(alpha q . k)) / alpha over the keys of sinks and window, one a query: as a unit of index=keys scores.
//   task  head, q, shape, alpha, scores [shape.group] out with a stride; its units are ignored
void fixed_scores(const ScoreTask& task, const Region& region, ScoreScratch& scratch);

}  // namespace mneme

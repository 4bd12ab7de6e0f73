// Scores of page summaries for the reference: entries by the index's own builder, scored by their definition in f64.
#pragma once

#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/recipes/compile.h"

namespace mneme {

// Whether the plan selects by centroids, sketches or moments.
bool selects_by_summary(const Plan& plan);
// [query][unit] of the region's candidates.
std::vector<std::vector<double>> summary_scores_ref(const Plan& plan, const SequenceCache& cache, std::int32_t layer,
                                                    std::int32_t kv_head, const Region& region,
                                                    const std::vector<std::vector<double>>& queries);

}  // namespace mneme

#include "src/methods/list_units.h"

#include <algorithm>
#include <numeric>

#include "src/base/size32.h"
#include "src/selection/cluster/kmeans.h"

namespace mneme {
namespace {

// Positions of a range by cluster, ascending in each; ends[c]: end of cluster c.
struct Clusters {
  std::vector<std::int32_t> positions, ends;
};

Clusters cluster(const UnitRange& range, const ClusterUnit& rules, std::span<const KvRun> runs,
                 const AttentionShape& shape) {
  const std::int32_t n = range.end - range.begin, n_clusters = (n + rules.tokens - 1) / rules.tokens;
  std::vector<std::int32_t> of_token(n);
  if (n_clusters == n) {
    std::iota(of_token.begin(), of_token.end(), 0);  // one cluster per token
  } else {
    KmeansScratch scratch;
    kmeans_cpu({.runs = runs,
                .shape = shape,
                .n_clusters = n_clusters,
                .iterations = rules.iterations,
                .metric = rules.metric},
               of_token.data(), scratch);
  }
  Clusters result;
  result.positions.resize(of_token.size());
  result.ends.assign(n_clusters, 0);
  for (std::int32_t c : of_token) ++result.ends[c];
  std::vector<std::int32_t> next(result.ends.size());
  std::exclusive_scan(result.ends.begin(), result.ends.end(), next.begin(), 0);
  std::inclusive_scan(result.ends.begin(), result.ends.end(), result.ends.begin());
  for (std::size_t t = 0; t < of_token.size(); ++t) {
    std::int32_t& at = next[of_token[t]];
    result.positions[at++] = range.begin + count32(t);
  }
  return result;
}

}  // namespace

void append_list_units(std::span<const UnitRange> ranges, const Plan& plan, const SequenceCache& cache,
                       std::int32_t layer, std::int32_t kv_head, UnitTable& table, EntryStore& entries) {
  const AttentionShape shape = plan.shape.attention();
  std::vector<KvRun> runs;
  const auto append = [&](std::span<const std::int32_t> positions) {
    if (positions.empty()) return;  // an empty cluster
    table.append(positions, cache, layer, kv_head);
    if (entries.entry_bytes() == 0) return;
    runs.clear();
    table.append_runs(table.size() - 1, size32(positions), cache, layer, kv_head, runs);
    plan.index->build(runs, shape, entries.append());
  };
  for (const UnitRange& range : ranges) {
    if (!range.clusters) {
      std::vector<std::int32_t> positions(range.end - range.begin);
      std::iota(positions.begin(), positions.end(), range.begin);
      append(positions);
      continue;
    }
    runs.clear();
    cache.append_runs(layer, kv_head, range.begin, range.end, runs);
    const Clusters clusters = cluster(range, plan.lists->clusters, runs, shape);
    std::int32_t begin = 0;
    for (std::int32_t end : clusters.ends) {
      append(std::span(clusters.positions).subspan(begin, end - begin));
      begin = end;
    }
  }
}

}  // namespace mneme

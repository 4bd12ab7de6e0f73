#include "src/model/cuda/retrieval/unit_lists.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/selection/cluster/kmeans_cuda.h"

namespace mneme {
namespace {

std::int32_t clusters_of(std::int32_t n_tokens, const ClusterUnit& rules) {
  return (n_tokens + rules.tokens - 1) / rules.tokens;
}

}  // namespace

CudaUnitLists::CudaUnitLists(const DeviceCache& cache)
    : cache_(cache), built_(static_cast<std::size_t>(cache.n_seq_slots) * static_cast<std::size_t>(cache.n_layers)) {}

std::int32_t CudaUnitLists::most_units(std::int32_t each, std::int64_t max_context) {
  return static_cast<std::int32_t>(std::min(max_context / each + max_context / 32 + 64, max_context + 1));
}

void CudaUnitLists::forget(std::int32_t seq_slot, const Stream& stream) {
  join(stream);
  for (std::int32_t l = 0; l < cache_.n_layers; ++l) built(seq_slot, l) = {};
}

void CudaUnitLists::follow(const IndexedLayer& layer, const Plan& plan, const Partition& partition,
                           const KvTables& keys, const Stream& stream) {
  Built& b = built(layer.seq_slot, layer.slot_layer);
  const std::int32_t sink = plan.lists->partition.sink;
  const std::span<const UnitRange> wanted = partition.ranges();
  std::size_t same = 0;
  while (same < std::min(b.ranges.size(), wanted.size()) && b.ranges[same] == wanted[same]) ++same;
  if (same < b.ranges.size() || b.sink != sink) {
    join(stream);
    b.ranges.resize(same), b.units.resize(same);
    b.sink = sink;
    truncate_units_cuda(layer, b.ranges.empty() ? sink : b.ranges.back().end, sink, cache_, {.stream = stream.get()});
  }
  for (const UnitRange& range : wanted.subspan(same)) {
    const std::int32_t units = (b.units.empty() ? 0 : b.units.back()) +
                               (range.clusters ? clusters_of(range.end - range.begin, plan.lists->clusters) : 1);
    if (units > cache_.index.lists.max_units)
      fail(ErrorKind::kResource, "{} clusters and segments of a sequence; the device has room for {}", units,
           cache_.index.lists.max_units);
    b.ranges.push_back(range);
    b.units.push_back(units);
    if (range.clusters) {
      close_segments(keys, stream);  // clusters must follow them
      cluster(layer, plan, range, keys, stream);
      b.beside = true;
      continue;
    }
    if (b.beside) join(stream);  // they must follow the clusters
    segments_.push_back({.of = layer, .sink = sink, .begin = range.begin, .end = range.end});
  }
}

CudaUnitLists::StagingBuffer& CudaUnitLists::next_staging(const ClusterUnit& rules) {
  const std::int32_t most = std::min(rules.block, kMaxKmeansTokens), clusters = clusters_of(most, rules),
                     heads = cache_.n_kv_heads;
  const std::size_t tokens = static_cast<std::size_t>(heads) * static_cast<std::size_t>(most),
                    kmeans = kmeans_scratch_bytes(heads, most, cache_.head_dim, clusters);
  std::optional<StagingBuffer>& t = staging_[round_++ % staging_.size()];
  if (t && t->clusters.size() >= tokens * 2 && t->kmeans.size() >= kmeans) return *t;
  if (t) t->done.synchronize();
  t.emplace();
  t->keys = DeviceBuffer(tokens * list_dim(cache_.head_dim) * 2, "keys that are clustered");
  t->clusters = DeviceBuffer(tokens * 2, "clusters of tokens");
  t->kmeans = DeviceBuffer(kmeans, "k-means");
  t->counts = DeviceBuffer(append_clusters_scratch_bytes(heads, most), "sizes of clusters");
  t->done.record(side_);
  return *t;
}

// The keys are copied in `stream`; clustering runs in the side stream.
void CudaUnitLists::cluster(const IndexedLayer& layer, const Plan& plan, const UnitRange& range, const KvTables& keys,
                            const Stream& stream) {
  const ClusterUnit& rules = plan.lists->clusters;
  const std::int32_t n = range.end - range.begin, n_clusters = clusters_of(n, rules);
  MNEME_CHECK(n <= std::min(rules.block, kMaxKmeansTokens), "a block of {} tokens", n);
  StagingBuffer& t = next_staging(rules);
  stream.wait(t.done);
  gather_keys_cuda({.of = layer, .first = range.begin, .n = n, .to = t.keys.data()}, keys, {.stream = stream.get()});
  t.copied.record(stream);
  side_.wait(t.copied);
  const CudaContext beside{.stream = side_.get()};
  const bool alone = n_clusters == n;  // one cluster per token
  if (!alone)
    kmeans_cuda({.keys = t.keys.data(),
                 .n_heads = cache_.n_kv_heads,
                 .n = n,
                 .head_dim = cache_.head_dim,
                 .f16 = cache_.f16,
                 .n_clusters = n_clusters,
                 .iterations = rules.iterations,
                 .metric = rules.metric,
                 .cluster = t.clusters.as<std::uint16_t>(),
                 .scratch = t.kmeans.data()},
                beside);
  append_clusters_cuda({.of = layer,
                        .sink = plan.lists->partition.sink,
                        .first = range.begin,
                        .n = n,
                        .n_clusters = n_clusters,
                        .keys = t.keys.data(),
                        .cluster = alone ? nullptr : t.clusters.as<std::uint16_t>(),
                        .scratch = t.counts.data()},
                       cache_, beside);
  t.done.record(side_);
  side_busy_ = true;
}

void CudaUnitLists::close_segments(const KvTables& keys, const Stream& stream) {
  append_segments_cuda(segments_, cache_, keys, {.stream = stream.get()});
  segments_.clear();
}

void CudaUnitLists::join(const Stream& stream) {
  if (!side_busy_) return;
  for (const std::optional<StagingBuffer>& t : staging_)
    if (t) stream.wait(t->done);
  for (Built& b : built_) b.beside = false;
  side_busy_ = false;
}

std::size_t CudaUnitLists::bytes() const {
  std::size_t n = 0;
  for (const std::optional<StagingBuffer>& t : staging_)
    if (t) n += t->keys.size() + t->clusters.size() + t->kmeans.size() + t->counts.size();
  return n;
}

}  // namespace mneme

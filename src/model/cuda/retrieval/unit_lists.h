// Clusters and segments of sequences on the device: updates the lists of a (sequence slot, layer) to its partition. The
// host knows the partition, because it learns of boundaries at the end of every step; only the device knows the tokens
// of a cluster.
//
// Clustering runs concurrently with other work, including later steps: the keys of a block are copied, and the rest
// runs in its own stream until join().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/cuda/memory.h"
#include "src/cuda/stream.h"
#include "src/recipes/compile.h"
#include "src/selection/cluster/list_units_cuda.h"
#include "src/selection/cluster/partition.h"

namespace mneme {

class CudaUnitLists {
 public:
  // For `cache`, whose list memory is allocated.
  explicit CudaUnitLists(const DeviceCache& cache);

  // Maximum number of units of a sequence: consecutive ones of `each` tokens, the smallest size, plus remainders of
  // prompts.
  static std::int32_t most_units(std::int32_t each, std::int64_t max_context);

  // The sequence slot gets another sequence, or units of another kind.
  void forget(std::int32_t seq_slot, const Stream& stream);
  // Follows the partition. Keys are in `keys`. Enqueues on `stream` and the side stream; segments are collected for
  // close_segments(). Errors  kResource: too many units.
  void follow(const IndexedLayer& layer, const Plan& plan, const Partition& partition, const KvTables& keys,
              const Stream& stream);
  void close_segments(const KvTables& keys, const Stream& stream);
  // `stream` waits for the side stream.
  void join(const Stream& stream);

  std::size_t bytes() const;

 private:
  struct Built {  // state of a (sequence slot, layer)
    std::vector<UnitRange> ranges;
    std::vector<std::int32_t> units;  // upper bound of units up to the end of each range
    std::int32_t sink = -1;           // where the units start; -1: unknown
    bool beside = false;              // some may still run in the side stream
  };
  struct StagingBuffer {  // working memory of one block of clusters
    DeviceBuffer keys, clusters, kmeans, counts;
    Event copied = Event::make(), done = Event::make();
  };
  void cluster(const IndexedLayer& layer, const Plan& plan, const UnitRange& range, const KvTables& keys,
               const Stream& stream);
  StagingBuffer& next_staging(const ClusterUnit& rules);
  Built& built(std::int32_t seq_slot, std::int32_t slot_layer) {
    return built_[static_cast<std::size_t>(seq_slot * cache_.n_layers + slot_layer)];
  }

  DeviceCache cache_;
  std::vector<Built> built_;       // by sequence slot and layer
  std::vector<Segment> segments_;  // collected
  std::array<std::optional<StagingBuffer>, 2> staging_;
  std::size_t round_ = 0;
  Stream side_ = Stream::make();
  bool side_busy_ = false;
};

}  // namespace mneme

// Clusters and segments of the sequences on the device: brings the lists of a (place, layer) to what its partition
// says. The host knows the partition, because it learns at the end of every step where boundaries were; the tokens of a
// cluster are known on the device alone.
//
// Clusters are found beside what else runs, also beside the steps that follow: the keys of a block are copied, and the
// rest goes on in a stream of its own until join().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/blocks/partition.h"
#include "src/device/memory.h"
#include "src/device/stream.h"
#include "src/kernels/list_units_cuda.h"
#include "src/recipes/compile.h"

namespace mneme {

class CudaUnitLists {
 public:
  // For `slots`, whose lists have their memory.
  explicit CudaUnitLists(const KvSlots& slots);

  // Units that a sequence of so many tokens may have: one of `each` tokens, the smallest, after the other, and what is
  // left of prompts between them.
  static std::int32_t most_units(std::int32_t each, std::int64_t max_context);

  // A place has another sequence, or units of another kind.
  void forget(std::int32_t place, const Stream& stream);
  // The keys are in `keys`, sequence key_slot and layer key_layer. Enqueues on `stream` and beside it; segments are
  // noted for close_segments(). Errors  kResource: more units than there is room for.
  struct Layer {
    std::int32_t place = 0, slot_layer = 0;
    std::int32_t key_slot = 0, key_layer = 0;
  };
  void follow(const Layer& layer, const Plan& plan, const Partition& partition, const KvTables& keys,
              const Stream& stream);
  void close_segments(const KvTables& keys, const Stream& stream);
  // What runs beside is in `stream` too.
  void join(const Stream& stream);

  std::size_t bytes() const;

 private:
  struct Built {  // of a (place, layer)
    std::vector<UnitRange> ranges;
    std::vector<std::int32_t> units;  // at most so many, up to the end of each range
    std::int32_t sink = -1;           // that they begin at; -1: nothing is known
    bool beside = false;              // some may not be in the stream yet
  };
  struct Turn {  // memory of one block of clusters
    DeviceBuffer keys, clusters, kmeans, counts;
    Event copied = Event::make(), done = Event::make();
  };
  void cluster(const Layer& layer, const Plan& plan, const UnitRange& range, const KvTables& keys,
               const Stream& stream);
  Turn& next_turn(const ClusterUnit& rules);
  Built& built(std::int32_t place, std::int32_t slot_layer) {
    return built_[static_cast<std::size_t>(place * slots_.n_layers + slot_layer)];
  }

  KvSlots slots_;
  std::vector<Built> built_;       // by place and layer
  std::vector<Segment> segments_;  // noted
  std::array<std::optional<Turn>, 2> turns_;
  std::size_t turn_ = 0;
  Stream side_ = Stream::make();
  bool beside_ = false;
};

}  // namespace mneme

// All that a method remembers of one sequence: index entries, selections, the last queries, and what it counted. A copy
// is a fork: it goes on exactly as the original, and shares the complete chunks of its index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/attention/method_stats.h"
#include "src/attention/turned_window.h"
#include "src/recipes/compile.h"

namespace mneme {

class MethodState {
 public:
  struct Layer {
    std::vector<EntryStore> entries;  // by KV head
    std::vector<std::vector<std::int32_t>>
        attended;  // by selection head: units attended at the last sparse step, ascending
    std::vector<std::vector<std::int32_t>> ahead;  // by selection head: units chosen for the step of length `ahead_for`
    std::int32_t ahead_for = -1;                   // tokens stored at the step that `ahead` is meant for; -1: none
    std::vector<float> last_query;   // [n_heads, D] of the step that made `ahead`; empty unless there is a gate
    std::vector<TurnedWindow> near;  // by KV head, where keys are stored before RoPE; else empty
  };

  explicit MethodState(std::shared_ptr<const Plan> plan);

  const Plan& plan() const { return *plan_; }
  const std::shared_ptr<const Plan>& shared_plan() const { return plan_; }
  Layer& layer(std::int32_t l) { return layers_[static_cast<std::size_t>(l)]; }
  MethodStats& stats() { return stats_; }
  const MethodStats& stats() const { return stats_; }
  // The query of the layer below in this step, [n_heads, D]; for Probe::kPreviousLayer, else empty.
  std::vector<float>& query_below() { return query_below_; }

  // Builds the entries of all units that the cache holds completely and that have none yet. One (layer, KV head) is one
  // thread's work.
  void close_units(std::int32_t layer, std::int32_t kv_head, const SequenceCache& cache);
  // Forgets what was derived from tokens from `length` on.
  void truncate(std::int32_t length);

  std::size_t index_bytes() const;  // all entries, shared chunks included
  std::size_t state_bytes() const;  // selections and queries
  std::uint32_t decode_steps() const { return decode_steps_; }
  void count_decode_step() { ++decode_steps_; }

 private:
  std::shared_ptr<const Plan> plan_;
  std::vector<Layer> layers_;
  std::vector<float> query_below_;
  MethodStats stats_;
  std::uint32_t decode_steps_ = 0;
};

}  // namespace mneme

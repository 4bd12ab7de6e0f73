// All that a method remembers of one sequence: index entries, selections, the last queries, and what it counted. A copy
// is a fork: it goes on exactly as the original, and shares the complete chunks of its index.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/attention/layer_memory.h"
#include "src/attention/method_stats.h"
#include "src/attention/turned_window.h"
#include "src/blocks/entropy_cut.h"
#include "src/recipes/compile.h"

namespace mneme {

// Units by rank, for selections that serve several steps: a step attends as long a beginning as its budget has room
// for.
struct Ranking {
  std::vector<std::int32_t> units;  // best first
  std::vector<std::int32_t> ends;   // ends[i]: tokens of the first i + 1 units

  std::int32_t n_tokens() const { return ends.empty() ? 0 : ends.back(); }
  // The units that hold its first n tokens, ascending. Requires  0 <= n <= n_tokens().
  void take(std::int32_t n, std::vector<std::int32_t>& taken) const;
};

class MethodState {
 public:
  // Steps are named by the tokens that are stored when they run, -1 is none of them.
  struct Layer {
    std::vector<EntryStore> entries;                  // by KV head
    std::vector<std::vector<std::int32_t>> attended;  // by selection head: units of the last sparse step, ascending
    std::vector<std::vector<std::int32_t>> ahead;     // Reuse::kAhead: units chosen for step `ready_for`
    std::vector<Ranking> ranked;                      // Reuse::kKept: what `attended` is taken from
    std::int32_t ready_for = -1;                      // the step for which `ahead` or `ranked` is at hand
    std::int32_t reused = 0;                          // steps that `ranked` served after its own
    std::vector<float> last_query;                    // [n_heads, D] that the gate compares with; empty without a gate
    std::int32_t queried_for = -1;                    // the step that may compare with it
    std::vector<TurnedWindow> near;                   // by KV head, where keys are stored before RoPE; else empty
    std::optional<LayerMemory> memory;                // where the layer decides as a whole
  };

  explicit MethodState(std::shared_ptr<const Plan> plan);

  const Plan& plan() const { return *plan_; }
  const std::shared_ptr<const Plan>& shared_plan() const { return plan_; }
  Layer& layer(std::int32_t l) { return layers_[static_cast<std::size_t>(l)]; }
  const Layer& layer(std::int32_t l) const { return layers_[static_cast<std::size_t>(l)]; }
  // Whether the gate of a layer has something to compare with, and something to keep, at the step of `length` tokens.
  bool asks_gate(std::int32_t layer, std::int32_t length) const;
  MethodStats& stats() { return stats_; }
  const MethodStats& stats() const { return stats_; }
  // The query of the layer below in this step, [n_heads, D]; for Probe::kPreviousLayer, else empty.
  std::vector<float>& query_below() { return query_below_; }

  // Which layers share a budget; null: all have the same.
  EntropyCut* cut() { return cut_ ? &*cut_ : nullptr; }
  // The layer's number among those that are compressed.
  std::int32_t compressed_number(std::int32_t l) const;
  // Positions [first, second) of the prompt's question, for methods that score with it; set before they are computed.
  std::pair<std::int32_t, std::int32_t> question_span() const { return question_span_; }
  void set_question_span(std::int32_t begin, std::int32_t end);

  // Builds the entries of all units that the cache holds completely and that have none yet. One (layer, KV head) is one
  // thread's work.
  void close_units(std::int32_t layer, std::int32_t kv_head, const SequenceCache& cache);
  // Forgets what was derived from tokens from `length` on. Requires  can_truncate(length).
  void truncate(std::int32_t length);
  // What queries left behind cannot be taken back row by row: such a state begins anew, or stays.
  bool can_truncate(std::int32_t length) const { return length == 0 || !plan_->layer_choice; }
  // The last tokens are computed once more, the same ones.
  void step_back(std::int32_t length);

  // A new state whose index has the entries of the first `length` tokens. Requires  can_truncate(length), or all tokens
  // that it has seen.
  MethodState index_of_prefix(std::int32_t length) const;

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
  std::optional<EntropyCut> cut_;
  std::pair<std::int32_t, std::int32_t> question_span_{0, 0};
};

}  // namespace mneme

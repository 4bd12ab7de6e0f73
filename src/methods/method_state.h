// All that a method remembers of one sequence: index entries, selections, the last queries, attention received, and
// what it counted. A copy is a fork: it goes on exactly as the original, and shares the complete chunks of its index.
//
// What a step decides to drop is pending until commit(): a step that fails has dropped nothing.
#pragma once

#include <algorithm>
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
#include "src/blocks/partition.h"
#include "src/blocks/unit_table.h"
#include "src/recipes/compile.h"
#include "src/tensor/buffer.h"

namespace mneme {

// Units by rank, for selections that serve several steps: a step attends as long a beginning as its budget has room
// for.
struct Ranking {
  std::vector<std::int32_t> units;  // best first
  std::vector<std::int32_t> ends;   // ends[i]: tokens of the first i + 1 units
  // Keys and values of its first n_copied tokens, in its order: one run for the steps that it serves, in place of one a
  // token. Forks share it as long as it stays what it is.
  std::shared_ptr<Buffer> copy;
  std::int32_t n_copied = 0;

  // The last unit of a beginning, of which only the first tokens may be in it.
  struct Cut {
    std::int32_t unit = -1, n_tokens = 0;
  };

  std::int32_t n_tokens() const { return ends.empty() ? 0 : ends.back(); }
  // The units that hold its first n tokens, ascending. Requires  0 <= n <= n_tokens().
  Cut take(std::int32_t n, std::vector<std::int32_t>& taken) const;
};

class MethodState {
 public:
  // The last rows of a prefill: their queries and what attention returned for them.
  struct TapRows {
    std::vector<float> q, lse;    // [n, n_heads, D], [n, n_heads]
    std::int32_t n = 0, end = 0;  // rows, and the position after the last one
    // How many of them stand right before `position`, one after the other.
    std::int32_t before(std::int32_t position) const {
      return end < position || end - n > position ? 0 : std::max(0, n - (end - position));
    }
  };
  // What a step decided, by KV head.
  struct Pending {
    std::vector<std::vector<TokenRange>> kept;  // ranks that stay; empty: nothing is dropped
    std::vector<std::vector<float>> mass;       // takes the place of Layer::mass; empty: that stays
    std::int32_t budget = 0;                    // 0: as it was
    bool prefill_end = false;                   // decided by the end of a prefill
  };
  // Steps are named by the tokens that are stored when they run, -1 is none of them.
  struct Layer {
    std::vector<EntryStore> entries;                  // by KV head
    Partition partition;                              // where units are lists
    std::vector<UnitTable> tables;                    // by KV head, where units are lists
    std::vector<std::vector<std::int32_t>> attended;  // by selection head: units of the last sparse step, ascending
    std::vector<std::vector<std::int32_t>> ahead;     // Reuse::kAhead: units chosen for step `ready_for`
    std::vector<Ranking> ranked;                      // Plan::ranks(): what `attended` is taken from
    std::vector<Ranking::Cut> cut;                    // and how much of its last unit
    std::int32_t ready_for = -1;                      // the step for which `ahead` or `ranked` is at hand
    std::int32_t reused = 0;                          // steps that `ranked` served after its own
    std::vector<float> last_query;                    // [n_heads, D] that the gate compares with; empty without a gate
    std::int32_t queried_for = -1;                    // the step that may compare with it
    std::vector<TurnedWindow> near;                   // by KV head, where keys are stored before RoPE; else empty
    std::int32_t budget = 0;                          // of this layer, where the prompt sets it; 0: it has not yet
    TapRows tap;                                      // what the end of a prefill will look at
    // By KV head: attention that every stored token received so far, the oldest first; only where all rows count.
    std::vector<std::vector<float>> mass;
    Pending pending;
    std::optional<LayerMemory> memory;  // where the layer decides as a whole
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

  // Tokens up to `length` that it has not seen were a prompt, which ends there or goes on.
  void see_prompt(std::int32_t layer, std::int32_t length, bool ends);
  // The last of `length` tokens was decoded, at a boundary or not; those before it that it has not seen were a prompt.
  void see_output(std::int32_t layer, std::int32_t length, bool boundary);
  // It was at a boundary, where see_output() could not know yet.
  void see_boundary(std::int32_t layer);
  // Builds the units that are complete by what it has seen, or holds completely where they are no lists, and their
  // entries. One (layer, KV head) is one thread's work.
  void close_units(std::int32_t layer, std::int32_t kv_head, const SequenceCache& cache);
  bool has_units_to_close(std::int32_t layer, std::int32_t kv_head, std::int32_t length) const;

  // Where a KV head stands at the step of `length` tokens.
  Region region(std::int32_t layer, std::int32_t kv_head, std::int32_t length) const;
  std::int32_t unit_tokens(std::int32_t layer, std::int32_t kv_head, std::int32_t unit) const;
  // What a selection head attends of its units: runs in the order of the units, and positions. Returns how many tokens.
  std::int32_t append_selected_runs(std::int32_t layer, std::int32_t head, std::int32_t kv_head,
                                    const SequenceCache& cache, std::vector<KvRun>& runs) const;
  // The same tokens, the first `n_tokens` of the head's ranking, as one run and in its order, out of a copy that is
  // made where there is none of so many. Requires  Plan::ranks(), units that are lists.
  void append_copied_run(std::int32_t layer, std::int32_t head, std::int32_t kv_head, std::int32_t n_tokens,
                         const SequenceCache& cache, std::vector<KvRun>& runs);
  void mark_selected(std::int32_t layer, std::int32_t head, std::int32_t kv_head,
                     std::span<std::uint8_t> attended) const;
  // Forgets what was derived from tokens from `length` on, and what is pending. Attention that rows from there on gave
  // to tokens before stays counted, unless `length` is 0. Requires  can_truncate(length).
  void truncate(std::int32_t length);
  // What queries left behind cannot be taken back row by row: such a state begins anew, or stays.
  bool can_truncate(std::int32_t length) const { return length == 0 || !plan_->layer_choice; }
  // The last tokens are computed once more, the same ones.
  void step_back(std::int32_t length);
  // What the rows of a step decided becomes true, in the cache and here. Call it once the step has succeeded.
  void commit(SequenceCache& cache);

  // The regions of a layer: the plan's rules, with the budget that the prompt set.
  RegionRules rules(std::int32_t layer) const;

  // What the method knows of a sequence that keys and values do not tell, where it decides how prompts are read: for
  // saved sessions. `length`: tokens that are stored. Requires, for read: a new state.
  // Errors  kFormat: the bytes end, or contradict the length.
  void write(ByteWriter& out) const;
  void read(ByteReader& in, std::int32_t length);

  // A new state whose index has the units of the first `length` tokens. Requires  can_truncate(length), or all tokens
  // that it has seen.
  MethodState index_of_prefix(std::int32_t length) const;

  std::size_t index_bytes() const;  // all entries and lists, shared chunks included
  std::size_t copy_bytes() const;   // private copies of keys and values
  std::size_t state_bytes() const;  // selections, queries, where lists are cut, attention received
  std::uint32_t decode_steps() const { return decode_steps_; }
  void count_decode_step() { ++decode_steps_; }

 private:
  void close_lists(std::int32_t layer, std::int32_t kv_head, const SequenceCache& cache);
  std::int32_t n_selected(std::int32_t layer, std::int32_t head, std::int32_t kv_head, std::int32_t unit) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<Layer> layers_;
  std::vector<float> query_below_;
  MethodStats stats_;
  std::uint32_t decode_steps_ = 0;
  std::optional<EntropyCut> cut_;
  std::pair<std::int32_t, std::int32_t> question_span_{0, 0};
};

}  // namespace mneme

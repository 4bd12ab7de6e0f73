// State of a method for one sequence: index entries, selections, last queries, mass, counters. A copy is a fork: it
// continues exactly as the original, and shares complete chunks of the index.
//
// Drops are pending until commit(): a step that fails drops nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/methods/late_drops.h"
#include "src/methods/layer_memory.h"
#include "src/methods/positions/rotated_window.h"
#include "src/methods/stats/method_stats.h"
#include "src/recipes/compile.h"
#include "src/selection/cluster/partition.h"
#include "src/selection/index/unit_table.h"
#include "src/selection/layer/entropy_cut.h"
#include "src/selection/mass/page_stamps.h"
#include "src/selection/summary/key_frame.h"
#include "src/tensor/buffer.h"

namespace mneme {

// Units by rank, for selections that serve several steps: a step attends the longest prefix that its budget holds.
struct Ranking {
  std::vector<std::int32_t> units;  // best first
  std::vector<std::int32_t> ends;   // ends[i]: tokens of the first i + 1 units
  // Keys and values of the first n_copied tokens in ranking order: one run instead of one per token. Shared by forks
  // until modified.
  std::shared_ptr<Buffer> copy;
  std::int32_t n_copied = 0;

  // The last unit of a prefix, which may be truncated.
  struct Cut {
    std::int32_t unit = -1, n_tokens = 0;
  };

  std::int32_t n_tokens() const { return ends.empty() ? 0 : ends.back(); }
  // Units that hold the first n tokens, ascending. Requires  0 <= n <= n_tokens().
  Cut take(std::int32_t n, std::vector<std::int32_t>& taken) const;
};

class MethodState {
 public:
  // The last rows of a prefill: queries and log-sum-exp.
  struct ObservedQueries {
    std::vector<float> q, lse;    // [n, n_heads, D], [n, n_heads]
    std::int32_t n = 0, end = 0;  // rows; position after the last one
    // Number of rows that end directly before `position`.
    std::int32_t before(std::int32_t position) const {
      return end < position || end - n > position ? 0 : std::max(0, n - (end - position));
    }
  };
  // Decisions of a step, per KV head.
  struct Pending {
    std::vector<std::vector<TokenRange>> kept;   // ranks to keep; empty: no drop
    std::vector<std::vector<float>> mass;        // replaces Layer::mass; empty: unchanged
    std::vector<std::vector<PageStamp>> stamps;  // replaces Layer::stamps; empty: unchanged
    // Where layers share a budget by preference: what the last of them needs to decide for all.
    std::vector<std::vector<float>> scores;  // by KV head, smoothed, of the tokens that are ranked
    double preference = 0;
    std::int32_t budget = 0;   // 0: unchanged
    bool prefill_end = false;  // decided at the end of a prefill
  };
  // Steps are identified by the number of tokens stored when they run; -1: none.
  struct Layer {
    std::vector<EntryStore> entries;                  // by KV head
    std::vector<KeyFrame> frames;                     // by KV head, of indexes that have one; else empty
    Partition partition;                              // for units that are lists
    std::vector<UnitTable> tables;                    // by KV head, for units that are lists
    std::vector<std::vector<std::int32_t>> attended;  // by selection head: units of the last sparse step, ascending
    std::vector<std::vector<std::int32_t>>
        speculative;                     // ScheduleKind::kSpeculative: units selected for step `ready_for`
    std::vector<std::int32_t> held_for;  // by selection head: the step that may hold `attended`
    std::vector<std::vector<std::int32_t>> kept_tokens;  // by selection head, of cutoff=top_p: attended, ascending
    std::vector<Ranking> ranked;                         // Plan::ranks(): the ranking that `attended` is a prefix of
    std::vector<Ranking::Cut> cut;                       // its last, truncated unit
    std::int32_t ready_for = -1;                         // the step for which `speculative` or `ranked` is valid
    std::int32_t reused = 0;                             // steps that reused `ranked` after its own
    std::vector<float> last_query;                       // [n_heads, D], compared by the gate; empty without a gate
    std::int32_t queried_for = -1;                       // the step that may compare with it
    std::vector<RotatedWindow> local;                    // by KV head, with pre-RoPE keys; else empty
    std::int32_t budget = 0;                             // of this layer, where the prompt determines it; 0: not yet
    ObservedQueries observed_queries;                    // for the end of a prefill
    // By KV head: mass that every stored token received so far, oldest first; only where all rows count.
    std::vector<std::vector<float>> mass;
    std::vector<std::vector<PageStamp>> stamps;  // by KV head, of rank=stamp: complete pages behind the sinks
    std::int32_t prompt_end = 0;                 // of rank=stamp: length at the last prompt's end
    Pending pending;
    std::optional<LayerMemory> memory;  // with selection per layer
  };

  explicit MethodState(std::shared_ptr<const Plan> plan);

  const Plan& plan() const { return *plan_; }
  const std::shared_ptr<const Plan>& shared_plan() const { return plan_; }
  Layer& layer(std::int32_t l) { return layers_[l]; }
  const Layer& layer(std::int32_t l) const { return layers_[l]; }
  // Whether a layer's gate has a query to compare with and a selection to keep, at the step of `length` tokens.
  bool asks_gate(std::int32_t layer, std::int32_t length) const;
  MethodStats& stats() { return stats_; }
  const MethodStats& stats() const { return stats_; }

  // Shared layer budget; null: all layers have the same.
  EntropyCut* cut() { return cut_ ? &*cut_ : nullptr; }
  // Index of the layer among the compressed layers.
  std::int32_t compressed_number(std::int32_t l) const;
  // Positions [first, second) of the prompt's question, for methods that score with it; set before they are computed.
  std::pair<std::int32_t, std::int32_t> question_span() const { return question_span_; }
  void set_question_span(std::int32_t begin, std::int32_t end);

  // Marks tokens up to `length` that it has not seen as a prompt, which ends there or continues.
  void see_prompt(std::int32_t layer, std::int32_t length, bool ends);
  // Marks the last of `length` tokens as decoded, at a boundary or not, and unseen tokens before it as a prompt.
  void see_output(std::int32_t layer, std::int32_t length, bool boundary);
  // Marks the last token as a boundary, where see_output() could not know yet.
  void see_boundary(std::int32_t layer);
  // Builds the units that are complete, and their index entries. One thread per (layer, KV head).
  void close_units(std::int32_t layer, std::int32_t kv_head, const SequenceCache& cache);
  bool has_units_to_close(std::int32_t layer, std::int32_t kv_head, std::int32_t length) const;

  // What the entries of a KV head share; null: the index has no frame, or no entries yet.
  const float* frame(std::int32_t layer, std::int32_t kv_head) const {
    return this->layer(layer).frames.empty() ? nullptr : this->layer(layer).frames[kv_head].data();
  }

  // Whether a step attends part of what it selected: Layer::kept_tokens.
  bool keeps_tokens(std::int32_t layer) const { return !this->layer(layer).kept_tokens.empty(); }

  // A KV head's region at the step of `length` tokens.
  Region region(std::int32_t layer, std::int32_t kv_head, std::int32_t length) const;
  std::int32_t unit_tokens(std::int32_t layer, std::int32_t kv_head, std::int32_t unit) const;
  // Appends the runs of a selection head's units, in order of units and positions. Returns the number of tokens.
  std::int32_t append_selected_runs(std::int32_t layer, std::int32_t head, std::int32_t kv_head,
                                    const SequenceCache& cache, std::vector<KvRun>& runs) const;
  // Appends the first `n_tokens` of the head's ranking as one run, in ranking order, from a copy that is made on
  // demand. Requires  Plan::ranks(), units that are lists.
  void append_copied_run(std::int32_t layer, std::int32_t head, std::int32_t kv_head, std::int32_t n_tokens,
                         const SequenceCache& cache, std::vector<KvRun>& runs);
  void mark_selected(std::int32_t layer, std::int32_t head, std::int32_t kv_head,
                     std::span<std::uint8_t> attended) const;
  // Removes what was derived from tokens from `length` on, and pending decisions. Mass that removed rows gave to
  // earlier tokens remains, unless `length` is 0. Requires  can_truncate(length).
  void truncate(std::int32_t length);
  // With selection per layer, the influence of queries cannot be undone row by row: only a full reset is possible.
  bool can_truncate(std::int32_t length) const { return length == 0 || !plan_->layer_selection; }
  // Prepares to recompute the last tokens, unchanged.
  void step_back(std::int32_t length);
  // Applies the step's decisions to the cache and to this state. Call once the step has succeeded.
  void commit(SequenceCache& cache);
  // Learns what a device has dropped since (late_drops.h), before anything but the next decode step uses the cache or
  // this state. Nothing on the CPU.
  void settle(SequenceCache& cache);
  LateDropsOwner& late() { return late_; }
  const LateDropsOwner& late() const { return late_; }

  // A layer's region rules: the plan's, with the budget that the prompt determined.
  RegionRules rules(std::int32_t layer) const;

  // For saved sessions: state that cannot be derived from keys and values, for methods that define how prompts are
  // read. `length`: stored tokens. Requires  (read) a new state.
  // Errors  kFormat: unexpected end of data, or inconsistent with the length.
  void write(ByteWriter& out) const;
  void read(ByteReader& in, std::int32_t length);

  // A new state whose index has the units of the first `length` tokens. Requires  can_truncate(length), or all tokens
  // seen so far.
  MethodState index_of_prefix(std::int32_t length) const;

  std::size_t index_bytes() const;  // all entries and lists, shared chunks included
  std::size_t copy_bytes() const;   // private copies of keys and values
  std::size_t state_bytes() const;  // selections, queries, list bounds, mass
  std::uint32_t decode_steps() const { return decode_steps_; }
  void count_decode_step() { ++decode_steps_; }

 private:
  // The frame of `complete` entries; another than the present one empties the entries, which are built in it again.
  void fit_frame(std::int32_t layer, std::int32_t kv_head, const SequenceCache& cache, std::int32_t complete);
  void close_lists(std::int32_t layer, std::int32_t kv_head, const SequenceCache& cache);
  std::int32_t n_selected(std::int32_t layer, std::int32_t head, std::int32_t kv_head, std::int32_t unit) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<Layer> layers_;
  MethodStats stats_;
  std::uint32_t decode_steps_ = 0;
  std::optional<EntropyCut> cut_;
  std::pair<std::int32_t, std::int32_t> question_span_{0, 0};
  LateDropsOwner late_;
};

}  // namespace mneme

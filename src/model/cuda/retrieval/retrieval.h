// Device state of methods that select pages or tokens: cache slots, an index of all pages or tokens, full copies of
// dense layers, and the launches of a step that maintain them. If the pages are in device memory, tokens are attended
// in place and only the index exists.
//
// All of it is a cache: keys and values are in the pages of the pool, from which the state of a new (or returning)
// sequence is rebuilt. So forks, sessions and shared prefixes need nothing here, at the cost of that rebuild.
// docs/design/device-path.md: from a plan to the launches of a layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/methods/method_state.h"
#include "src/model/cuda/retrieval/layer_selections.h"
#include "src/model/cuda/retrieval/local_keys.h"
#include "src/model/cuda/retrieval/own_pages.h"
#include "src/model/cuda/retrieval/retrieval_memory.h"
#include "src/model/cuda/retrieval/unit_lists.h"
#include "src/ops/attention/attention_cuda.h"
#include "src/selection/summary/key_frame.h"

namespace mneme {

class CudaRetrieval : public RetrievalState {
 public:
  using Fit = CudaFit;
  using Needs = CudaRetrievalNeeds;
  // Errors (all calls with it)  kUnsupported.
  static Needs needs_of(const Plan& plan, const Fit& fit) { return needs_of(plan, fit, plan.rules.budget); }
  // The same for the maximum that the sequence's layers attend, where the prompt determines it. Until then its prompt
  // rows need no more than the plan.   length, decodes: of its next rows
  static Needs needs_of(const MethodState& method, std::int32_t length, bool decodes, const Fit& fit);

  // Allocates state for sequences whose plans need at most `needs`, and whose pages are in `pages`. Errors  kResource,
  // kUnsupported.
  CudaRetrieval(const KvShape& shape, std::int32_t n_heads, Needs needs, const KvTables& pages,
                const CudaRetrievalOptions& options);

  void observe(StepObserver* observer) { options_.observer = observer; }

  // Local part of a row, as indices of the tables that it reads, and length of the remote part. Dense layers have their
  // own values.
  struct TwoParts {
    std::int32_t local_from = 0, local_to = 0, remote_to = 0, local_from_dense = 0, remote_to_dense = 0;
  };
  // Decode rows, one per sequence: advances their state to the step whose token is the last of `cache`. Enqueues on
  // `stream`. seq_slot: from CudaTables.
  struct DecodeStep {
    const SequenceCache* cache = nullptr;
    MethodState* method = nullptr;
    std::int32_t seq_slot = -1, number = 0;  // number: index among the step's sequences
    // Out, for layers that select (the same in all unless prompts determine budgets): SlotRows::reset, and the number
    // of attended tokens (for selection per layer: without the selection).
    std::int32_t reset = 0, attended_tokens = 0;
    TwoParts parts;  // out, with two-part attention
  };
  void prepare(DecodeStep& row, const KvTables& pages, const Stream& stream);
  // Call before and after prepare() of all rows of a step.
  void begin_rows();
  void send_rows(const Stream& stream);
  // DecodeStep::reset and DecodeStep::attended_tokens of one layer, by DecodeStep::number; null where all layers have
  // the same.
  struct LayerLengths {
    const std::int32_t *reset = nullptr, *attended = nullptr;
  };
  LayerLengths layer_rows(std::int32_t layer) const;
  // The same for a prompt whose windows select: its next n rows, the last of `cache`.
  void prepare_prompt(const SequenceCache& cache, std::int32_t seq_slot, std::int32_t n, const KvTables& pages,
                      const Stream& stream);
  // Tokens [first, first + n) of a prompt, and all before them, are in `keys` (sequence key_slot, layer key_layer):
  // builds the index entries that they complete, or copies their pages for a dense layer.
  struct Prompt {
    const SequenceCache* cache = nullptr;
    MethodState* method = nullptr;
    std::int32_t seq_slot = -1, first = 0, n = 0, left = 0;  // left: as SequenceRows::prefill_left
    std::int32_t key_slot = 0, key_layer = 0;
  };
  void take_prompt(const Prompt& prompt, std::int32_t layer, const KvTables& keys, const Stream& stream);
  // With pages on the device: whether take_prompt() has anything to do.
  bool takes_prompts_in_pages() const { return lists_ != nullptr; }

  // Destination of the rows' new tokens besides their pages.
  SlotStore store(std::int32_t layer, const std::int32_t* seq_slots) const;
  // Tables that attention reads, and the index of `layer` in them.
  const KvTables& tables(std::int32_t layer) const {
    return slot_layer(layer) >= 0 ? slot_tables_ : in_pages_ ? pages_ : dense_.tables();
  }
  std::int32_t tables_layer(std::int32_t layer) const;
  // What a sequence slot attends in a layer that selects, since its last prepare().
  struct SeqSlotLayer {
    SelectionPlan plan;
    bool everything = false;
    std::int32_t reset = 0, attended = 0;  // as in Row
  };
  const SeqSlotLayer& at(std::int32_t seq_slot, std::int32_t layer) const {
    return seq_slots_[static_cast<std::size_t>(seq_slot)].layers[static_cast<std::size_t>(slot_layer(layer))];
  }
  // Index of a layer with selection per layer.
  LayerKeys layer_keys(std::int32_t layer) const { return by_layer_->keys(layer); }
  // Decode rows: their selections, by queries rotated for the remote part, and the length of the remote part.
  void select_by_layer(std::int32_t layer, const SlotRows& rows, const void* remote_q, std::int32_t* remote_to,
                       const CudaContext& context);
  // Rotated keys of the local part in `layer`; no pages where keys are stored post-RoPE.
  KeyRing local(std::int32_t layer, const std::int32_t* seq_slots) const {
    return local_ ? local_->ring(layer, seq_slots) : KeyRing{};
  }
  // Once the rows' queries are stored: StepObserver::after_append, where a plan has a gate.
  void after_append(std::int32_t layer, const SlotRows& rows, const KvTables& pages, const CudaContext& context) const;
  void select(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
              const CudaContext& context);
  // shares_scores(): there are two buffers of scores, used alternately; each is free once the selection for the next step
  // has ended.
  int next_scores() const { return 1 - scores_; }
  void recall(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
              const CudaContext& context);
  // prunes(): what recall() has listed, with these weights.
  struct Weights {
    const float* log_weights = nullptr;  // as DecodeAttentionCuda's
    std::int64_t stride = 0;
  };
  Weights weights() const { return {memory_.log_weights.as<float>(), weight_stride()}; }
  // q, lengths: of the rows, as attention takes them.
  Weights keep_top_p(std::int32_t layer, const SlotRows& rows, const void* q, const std::int32_t* lengths, float scale,
                     const CudaContext& context);
  const std::int32_t* relisted() const { return view_.slots.relisted; }
  ArrivingSlots arriving(const std::int32_t* tickets) const {
    return {tickets, view_.slots.listed_for, view_.slots.arrived_for};
  }

  // Builds groups of 1-bit keys, or other entries, that the rows' new tokens complete. layer -1: all.
  void close_groups(std::int32_t layer, const SlotRows& rows, const KvTables& pages, const CudaContext& context);
  // After the last layer: copies the new tokens to their pages.
  void write_back(const SlotRows& rows, const KvTables& pages, const CudaContext& context);

  // Copies counters to the host, ordered on `stream`; count() then adds them to the methods' statistics.
  void fetch_counts(const Stream& stream);
  void count(std::span<const DecodeStep> rows);

  std::size_t bytes() const;  // all device memory
  std::size_t slot_bytes() const { return memory_.slot_bytes(); }
  std::size_t index_bytes() const { return memory_.index_bytes() + (by_layer_ ? by_layer_->key_bytes() : 0); }
  std::size_t dense_bytes() const { return dense_.bytes(); }

 private:
  struct SeqSlot {
    std::uint64_t revision = 0;
    std::vector<SeqSlotLayer> layers;  // layers that select; one entry where none does
    std::int32_t decoded = -1;         // length at the last decode step here
    std::int32_t indexed = 0;          // tokens that the index covers, including those of its open page or group
    std::int32_t framed = 0;           // entries that its frames are fitted to (KeyFrame)
    std::int32_t dense = 0;            // tokens that the dense layers store
    std::vector<SlotCounts> counts;
    ClusterUnit clusters;
  };
  static Needs needs_of(const Plan& plan, const Fit& fit, std::int32_t budget);
  static SelectionPlan selection_plan_of(const Plan& plan, std::int32_t budget);
  // Rules of a layer in a table with these units, which the plan may not define. number: index among those that select.
  SelectionPlan selection_plan_in(const MethodState& method, std::size_t number) const;
  void index_keys(SeqSlot& p, std::int32_t seq_slot, std::int32_t n_tokens, const KvTables& pages,
                  const CudaContext& context);
  void count_by_layer(const DecodeStep& row);
  TwoParts parts_of(const Plan& plan, const SelectionPlan& selection, std::int32_t n_tokens) const;
  static std::int32_t attended_by(const SelectionPlan& selection, std::int32_t n, std::int32_t grouped);
  void begin_seq_slot(std::int32_t seq_slot, const SequenceCache& cache, const Plan& plan, const Stream& stream);
  void build_before(const DecodeStep& row, const KvTables& pages, const Stream& stream);
  void count_layer(const DecodeStep& row, std::int32_t layer, const SlotCounts& gained);
  std::int64_t index_bytes_read(const DecodeStep& row, std::int32_t layer, const SlotCounts& gained) const;
  std::int64_t entry_bytes_of(const DecodeStep& row, std::int32_t layer, std::int32_t n_tokens) const;
  void build_index(const IndexedLayer& of, std::int32_t first, std::int32_t stop, const KvTables& keys,
                   const CudaContext& context);
  void copy_dense(std::int32_t layer, std::int32_t seq_slot, const LayerPages& from, std::int32_t first,
                  std::int32_t stop, const CudaContext& context);
  void build_summaries(BuildEntries b, std::int32_t stop, const KvTables& keys, const CudaContext& context);
  // Whether the frames of a sequence slot are refitted once n_tokens are stored: to another number of entries.
  bool refits(const SeqSlot& p, std::int32_t n_tokens) const {
    return view_.index.entries.frame_floats > 0 && KeyFrame::pages_for(n_tokens / entry_tokens()) != p.framed;
  }
  SeqSlot& seq_slot_of(const SequenceCache& cache, const MethodState& method, std::int32_t seq_slot,
                       const Stream& stream);

  void select_fused(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
                    std::byte* scratch, const CudaContext& context);
  // StepObserver::after_selection. listed: the selection has written CacheSlots::listed.
  void after_selection(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages, bool listed,
                       const CudaContext& context) const;
  // Page tables as the heads of the cache slots read them.
  KvTables of_heads(KvTables pages) const {
    pages.shared_by = view_.shared;
    return pages;
  }

  RetrievalMemory memory_;
  std::optional<LayerSelections> by_layer_;
  std::optional<LocalKeys> local_;  // of pre-RoPE keys
  OwnPages dense_;                  // full copies of layers that attend everything, where pages are in host memory
  KvTables slot_tables_, pages_;
  std::vector<SeqSlot> seq_slots_;
  std::unique_ptr<CudaUnitLists> lists_;  // for units that are lists
  int scores_ = 0;                        // shares_scores(): buffer of the last selection
};

}  // namespace mneme

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

#include "src/cuda/memory.h"
#include "src/kv/sequence_cache.h"
#include "src/methods/method_state.h"
#include "src/model/cuda/retrieval/key_index.h"
#include "src/model/cuda/retrieval/page_recall.h"
#include "src/model/cuda/retrieval/retrieval_needs.h"
#include "src/model/cuda/retrieval/unit_lists.h"
#include "src/model/model.h"
#include "src/ops/attention/attention_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"
#include "src/ops/norm_rope/rope.h"
#include "src/selection/index/one_bit_cuda.h"
#include "src/selection/layer/layer_select_cuda.h"
#include "src/selection/summary/key_frame.h"
#include "src/selection/topk/unfused_select_cuda.h"

namespace mneme {

inline std::int32_t pages_of_tokens(std::int64_t n) {
  return static_cast<std::int32_t>((n + kPageTokens - 1) / kPageTokens);
}

inline std::int32_t whole_pages(std::int32_t n_tokens) {
  return pages_of_tokens(n_tokens) * kPageTokens;
}

// How plans are fitted to the device.
struct CudaFit {
  float spare = 0;       // cache slots beyond one selection, as a share of it
  bool unfused = false;  // tests, benchmarks: the unfused selection where a fused one covers the plan too
};

struct CudaRetrievalOptions {
  std::int32_t n_seq_slots = 1;  // sequences with state on the device
  std::int64_t max_context = 0;  // tokens per sequence
  CudaFit fit;
  std::int32_t more_slots = 0;     // cache slots of a head beyond what the needs say
  bool pages_on_device = false;    // else in mapped host memory
  std::int32_t recall_blocks = 8;  // recall_units_cuda's max_blocks
  // Benchmarks, see SelectionPlan and page_recall.h; below 0: off.
  float turnover = -1, correction = -1;
  RecallForm recall_form;
  std::int32_t delay_us = 0;        // DeviceCache::delay_us
  const RopeTable* rope = nullptr;  // the model's, for methods that rotate keys themselves
};

class CudaRetrieval {
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
  const Needs& needs() const { return needs_; }
  std::int32_t more_slots() const { return options_.more_slots; }

  // Benchmarks, see CudaRetrievalOptions.
  void inject_outcomes(float turnover, float correction, const RecallForm& form);

  // Local part of a row, as indices of the tables that it reads, and length of the remote part. Dense layers have their
  // own values.
  struct TwoParts {
    std::int32_t local_from = 0, local_to = 0, remote_to = 0, local_from_dense = 0, remote_to_dense = 0;
  };
  // Decode rows, one per sequence: advances their state to the step whose token is the last of `cache`. Enqueues on
  // `stream`. seq_slot: from CudaTables.
  struct Row {
    const SequenceCache* cache = nullptr;
    MethodState* method = nullptr;
    std::int32_t seq_slot = -1, number = 0;  // number: index among the step's sequences
    // Out, for layers that select (the same in all unless prompts determine budgets): SlotRows::reset, and the number
    // of attended tokens (for selection per layer: without the selection).
    std::int32_t reset = 0, attended_tokens = 0;
    TwoParts parts;  // out, with two-part attention
  };
  void prepare(Row& row, const KvTables& pages, const Stream& stream);
  // Call before and after prepare() of all rows of a step.
  void begin_rows();
  void send_rows(const Stream& stream);
  // Row::reset and Row::attended_tokens of one layer, by Row::number; null where all layers have the same.
  struct LayerRows {
    const std::int32_t *reset = nullptr, *attended = nullptr;
  };
  LayerRows layer_rows(std::int32_t layer) const;
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

  // -1: the layer attends everything.
  std::int32_t slot_layer(std::int32_t layer) const { return number_[static_cast<std::size_t>(layer)]; }
  // Destination of the rows' new tokens besides their pages.
  SlotStore store(std::int32_t layer, const std::int32_t* seq_slots) const;
  // Whether recall() lists a step's units.
  bool recalls() const { return !(in_pages_ && by_layer()); }
  // Tables that attention reads, and the index of `layer` in them.
  const KvTables& tables(std::int32_t layer) const {
    return slot_layer(layer) >= 0 ? slot_tables_ : in_pages_ ? pages_ : dense_tables_;
  }
  std::int32_t tables_layer(std::int32_t layer) const;
  const DeviceCache& device_cache() const { return view_; }
  // What a sequence slot attends in a layer that selects, since its last prepare().
  struct SeqSlotLayer {
    SelectionPlan plan;
    bool everything = false;
    std::int32_t reset = 0, attended = 0;  // as in Row
  };
  const SeqSlotLayer& at(std::int32_t seq_slot, std::int32_t layer) const {
    return seq_slots_[static_cast<std::size_t>(seq_slot)].layers[static_cast<std::size_t>(slot_layer(layer))];
  }
  bool two_parts() const { return needs_.two_parts; }
  bool by_layer() const { return needs_.keys.by_layer; }
  // Index of a layer with selection per layer.
  LayerKeys layer_keys(std::int32_t layer) const;
  // Decode rows: their selections, by queries rotated for the remote part, and the length of the remote part.
  void select_by_layer(std::int32_t layer, const SlotRows& rows, const void* remote_q, std::int32_t* remote_to,
                       const CudaContext& context);
  bool pre_rope_keys() const { return needs_.ring_pages > 0; }
  // Rotated keys of the local part in `layer`; no pages where keys are stored post-RoPE.
  KeyRing local(std::int32_t layer, const std::int32_t* seq_slots) const {
    return {.tables = local_tables_,
            .seq_slots = seq_slots,
            .layer = layer * options_.n_seq_slots,
            .pages = needs_.ring_pages};
  }
  bool selects() const { return uses(RetrievalUse::kSelects); }          // some plan selects,
  bool speculative() const { return uses(RetrievalUse::kSpeculative); }  // and does so one step ahead
  bool groups() const { return needs_.keys.group_tokens > 0; }           // of 1-bit keys
  // Whether there is something that close_groups() completes, and whether it must do so before select().
  bool closes() const { return groups() || needs_.keys.entries != EntryKind::kNone; }
  bool closes_first() const { return uses(RetrievalUse::kNewest); }
  // Keeps the rows' queries for the next layer's probe, where some plan has Probe::kPreviousLayer.
  void keep_probes(std::int32_t layer, const void* q, const SlotRows& rows, const CudaContext& context);
  // Whether select() lists for this step what recall() would.
  bool lists_as_selected() const { return in_pages_ && selects() && (groups() || scans_sketches()); }
  void select(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
              const CudaContext& context);
  // Whether select() for the next step reuses the scores of the one for this step. There are two score buffers, used
  // alternately; each is free once the selection for the next step has ended.
  bool shares_scores() const { return speculative() && groups() && !in_pages_; }
  int next_scores() const { return 1 - scores_; }
  // Whether a selection for the next step must start after the one for this step has ended.
  bool selects_in_sequence() const { return uses(RetrievalUse::kMassGate) || shares_scores(); }
  void recall(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
              const CudaContext& context);
  // Whether, after recall(), the rows attend only what keep_top_p() keeps of it: with its weights.
  bool prunes() const { return uses(RetrievalUse::kPrunes); }
  struct Weights {
    const float* log_weights = nullptr;  // as DecodeAttentionCuda's
    std::int64_t stride = 0;
  };
  Weights weights() const { return {log_weights_.as<float>(), weight_stride()}; }
  // q, lengths: of the rows, as attention takes them.
  Weights keep_top_p(std::int32_t layer, const SlotRows& rows, const void* q, const std::int32_t* lengths, float scale,
                     const CudaContext& context);
  // Whether hits are attended while recall() fetches the misses: attention with SlotRows::tickets is launched right
  // after it. Where most heads attend the speculative selection it costs more than it gains (freekv at 128K: 5.21 ms a
  // step in place of 5.14 without corrections, equal with 20 %).
  bool merges() const {
    return options_.recall_form.merged && selects() && !speculative() && !two_parts() && !prunes() &&
           view_.n_slots > 0 && view_.unit_tokens == kPageTokens;
  }
  // Whether the lists of the step before are attended while select() runs for this step, and then again those of flagged
  // heads, which recall() has written (relisted()). With a gate by mass, where all heads select before one is flagged:
  // `mneme` at 128K takes 5.8 ms a step in place of 6.1 without corrections (H200), as long as before with 20 %. With a
  // gate by cosines, whose selection few layers wait for, nothing is gained: 4.88 and 5.74 ms in place of 4.86 and 5.69.
  bool attends_early() const {
    return uses(RetrievalUse::kMassGate) && !two_parts() && !prunes() && view_.n_slots > 0 &&
           view_.unit_tokens == kPageTokens;
  }
  const std::int32_t* relisted() const { return view_.slots.relisted; }
  ArrivingSlots arriving(const std::int32_t* tickets) const {
    return {tickets, view_.slots.listed_for, view_.slots.arrived_for};
  }
  // Recall by the host (CudaRetrievalOptions::recall_form), in place of recall() for this step, with the decode rows.
  // Waits for the stream, so the step cannot be part of a graph.
  bool recalls_by_host() const { return options_.recall_form.by_host != nullptr; }
  void recall_by_host(std::int32_t layer, std::span<const Row> rows, const Stream& stream);

  // Builds groups of 1-bit keys, or other entries, that the rows' new tokens complete. layer -1: all.
  void close_groups(std::int32_t layer, const SlotRows& rows, const KvTables& pages, const CudaContext& context);
  // After the last layer: copies the new tokens to their pages.
  void write_back(const SlotRows& rows, const KvTables& pages, const CudaContext& context);

  // Copies counters to the host, ordered on `stream`; count() then adds them to the methods' statistics.
  void fetch_counts(const Stream& stream);
  void count(std::span<const Row> rows);

  std::size_t bytes() const;  // all device memory
  std::size_t slot_bytes() const { return slots_.size(); }
  std::size_t index_bytes() const { return index_.size() + (key_index_ ? key_index_->bytes() : 0); }
  std::size_t dense_bytes() const { return dense_.size(); }

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
  bool uses(RetrievalUse use) const { return needs_.uses.has(use); }
  // CudaRetrievalNeeds::Keys::fused_entries of each kind; pages by boxes as long as one thread block ranks them.
  bool scans_sketches() const;
  bool selects_sketch_pages() const;
  bool selects_small_pages() const;
  void number_layers();
  void describe(std::int32_t n_heads);
  // Of all layers that select and all sequence slots.
  struct Sizes {
    std::size_t states = 0, heads = 0;  // (layer, sequence slot); times heads of the cache slots
    std::size_t listed = 0, slots = 0;  // of a head
    std::size_t query_bytes = 0;
  };
  Sizes sizes() const;
  void allocate_slots();
  void allocate_index();
  void allocate_tables();
  void allocate_queries();
  void allocate_shares();
  void allocate_scratch();
  void allocate_dense(const Stream& stream);
  void allocate_ring(const Stream& stream);
  void send_numbers(const Stream& stream);
  static UnitEntries entries_of(const Needs::Keys& keys, const KvShape& shape, std::int32_t max_pages);
  static SelectionPlan selection_plan_of(const Plan& plan, std::int32_t budget, bool unfused);
  // Rules of a layer in a table with these units, which the plan may not define. number: index among those that select.
  SelectionPlan selection_plan_in(const MethodState& method, std::size_t number) const;
  void fill_ring(std::int32_t seq_slot, std::int32_t n_tokens, std::int32_t recent, const KvTables& pages,
                 const CudaContext& context);
  void index_keys(SeqSlot& p, std::int32_t seq_slot, std::int32_t n_tokens, const KvTables& pages,
                  const CudaContext& context);
  void send_shares(const Row& row, const Stream& stream);
  void count_by_layer(const Row& row);
  TwoParts parts_of(const Plan& plan, const SelectionPlan& selection, std::int32_t n_tokens) const;
  static std::int32_t attended_by(const SelectionPlan& selection, std::int32_t n, std::int32_t grouped);
  std::int64_t weight_stride() const { return std::int64_t{view_.max_listed} * view_.unit_tokens; }
  std::size_t rank_stride() const { return (static_cast<std::size_t>(view_.max_pages) + 3) / 4 * 4; }
  void begin_seq_slot(std::int32_t seq_slot, const SequenceCache& cache, const Plan& plan, const Stream& stream);
  void build_before(const Row& row, const KvTables& pages, const Stream& stream);
  void count_layer(const Row& row, std::int32_t layer, const SlotCounts& gained);
  std::int64_t index_bytes_read(const Row& row, std::int32_t layer, const SlotCounts& gained) const;
  std::int64_t entry_bytes_of(const Row& row, std::int32_t layer, std::int32_t n_tokens) const;
  std::int32_t entry_tokens() const {
    if (needs_.keys.entry_tokens > 0) return needs_.keys.entry_tokens;
    return view_.index.group_tokens > 0 ? view_.index.group_tokens : kPageTokens;
  }
  void build_index(std::int32_t seq_slot, std::int32_t number, std::int32_t first, std::int32_t stop,
                   std::int32_t key_slot, std::int32_t key_layer, const KvTables& keys, const CudaContext& context);
  void build_summaries(BuildEntries b, std::int32_t stop, const KvTables& keys, const CudaContext& context);
  // Whether the frames of a sequence slot are refitted once n_tokens are stored: to another number of entries.
  bool refits(const SeqSlot& p, std::int32_t n_tokens) const {
    return view_.index.entries.frame_floats > 0 && KeyFrame::pages_for(n_tokens / entry_tokens()) != p.framed;
  }
  SeqSlot& seq_slot_of(const SequenceCache& cache, const MethodState& method, std::int32_t seq_slot,
                       const Stream& stream);

  KvShape shape_;
  CudaRetrievalOptions options_;
  Needs needs_;
  bool in_pages_;                     // tokens are attended in their pages
  int scores_ = 0;                    // shares_scores(): buffer of the last selection
  std::vector<std::int32_t> number_;  // by layer: index among those that select, else -1
  std::vector<std::int32_t> dense_number_;
  std::vector<std::int32_t> selecting_;  // inverse: the model's layers, by index
  std::int32_t n_selecting_ = 0, n_dense_ = 0;
  // Page tables as the heads of the cache slots read them.
  KvTables of_heads(KvTables pages) const {
    pages.shared_by = view_.shared;
    return pages;
  }
  std::int32_t n_rows_;  // decode rows of a step, including a graph's padding
  DeviceCache view_;
  KvTables slot_tables_, dense_tables_, local_tables_, pages_;
  DeviceBuffer slots_, index_, tables_, queries_, plans_, counts_, scratch_[2], dense_, dense_blocks_, local_,
      local_blocks_, inv_freq_, shares_, frames_, numbers_device_, layers_device_, layer_rows_, log_weights_,
      top_p_;                                                             // layer_rows_: LayerRows'; top_p_: scratch
  PinnedBuffer host_counts_, host_plans_, host_units_, host_layer_rows_;  // host_units_: UnitLists::n_units
  std::optional<CudaKeyIndex> key_index_;
  // Shared layer budgets, see SelectLayer: of all sequence slots, in one allocation.
  struct Shares {
    LayerCut* cuts = nullptr;
    double *later = nullptr, *pools = nullptr, *thetas = nullptr;
    std::uint32_t* ranks = nullptr;
  } shares_view_;
  PinnedBuffer host_shares_, host_thetas_;
  std::vector<SeqSlot> seq_slots_;
  std::unique_ptr<PageRecall> host_recall_;
  std::unique_ptr<CudaUnitLists> lists_;  // for units that are lists
};

}  // namespace mneme

// What methods that select pages or tokens need on the device: slots for what is attended, an index of all pages or
// tokens, the whole of the layers that read everything; and the launches of a step that keep them right. Tokens whose
// pages lie on the device are attended there: then there is the index alone.
//
// All of it is a copy: keys and values lie in the pages of the pool, from which a sequence that comes (or comes back)
// is filled in. So forks, sessions and shared prefixes need nothing here, at the price of that fill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/attention/method_state.h"
#include "src/cache/sequence_cache.h"
#include "src/device/memory.h"
#include "src/kernels/attention_cuda.h"
#include "src/kernels/control_choose_cuda.h"
#include "src/kernels/layer_choose_cuda.h"
#include "src/kernels/one_bit_cuda.h"
#include "src/kernels/pointwise_cuda.h"
#include "src/kernels/rope.h"
#include "src/model/cuda_host_recall.h"
#include "src/model/cuda_key_index.h"
#include "src/model/cuda_unit_lists.h"
#include "src/model/model.h"

namespace mneme {

inline std::int32_t pages_of_tokens(std::int64_t n) {
  return static_cast<std::int32_t>((n + kPageTokens - 1) / kPageTokens);
}

inline std::int32_t whole_pages(std::int32_t n_tokens) {
  return pages_of_tokens(n_tokens) * kPageTokens;
}

struct CudaRetrievalOptions {
  std::int32_t n_places = 1;       // sequences whose state is kept
  std::int64_t max_context = 0;    // tokens of a sequence
  float spare = 0.5f;              // slots beside those of one selection, as a share of it
  bool pages_on_device = false;    // else in mapped host memory
  std::int32_t recall_blocks = 8;  // recall_units_cuda's max_blocks
  // For measuring, see SlotRules and cuda_host_recall.h; below 0: nothing is drawn.
  float turnover = -1, correction = -1;
  RecallBy recall_by = RecallBy::kMerged;
  std::int32_t delay_us = 0;        // KvSlots::delay_us
  const RopeTable* rope = nullptr;  // of the model, for methods that turn keys themselves
};

class CudaRetrieval {
 public:
  // Errors  kUnsupported: what the device cannot do of the recipe, in words, or that it cannot in the same step with
  // sequences under the plans of `beside`.
  static void expect(const Plan& plan, std::span<const Plan* const> beside = {});

  // What the plans of a step need together. Errors of all calls with it  kUnsupported.
  struct Needs {
    struct Keys {
      std::int32_t group_tokens = 0;  // units are tokens, by 1-bit keys in such groups; 0: pages
      bool by_key = false;            // units are tokens, by their keys
      bool mean_abs = false;
      bool by_layer = false;         // units are pages, one selection for all heads of a layer, by their keys
      std::int32_t list_tokens = 0;  // units are lists of at least so many tokens; 0: they are none
      bool none = false;             // nothing is selected: any units will do, alone pages
      bool of_tokens() const { return group_tokens > 0 || list_tokens > 0 || by_key; }
      bool operator==(const Keys&) const = default;
    };
    Keys keys;
    // Methods that see what is far from another position than what is near (docs/cuda.md): all of a step's, or none.
    bool two_parts = false;
    std::int32_t ring_pages = 0;               // of turned keys near the newest one, where keys are stored before RoPE
    std::vector<bool> dense;                   // by layer
    std::int32_t n_slots = 0, max_listed = 0;  // in units
    std::int32_t fetch = 1;                    // SlotRules::fetch
    bool selects = false, ahead = false, keeps = false;
    bool controls = false;    // of SlotScore kDrawn or kKeys
    bool last_asked = false;  // SlotRules::last_asked
    bool by_mass = false;     // SlotGate::kMass
    bool newest = false;      // a choice for the next step may be of a group that this one completes
    bool by_prompt = false;   // prompts set the budgets of their layers
    // Errors  the units, or the layers that read everything, are others.
    void add(const Needs& other);
    bool goes_with(const Needs& other) const {
      return dense == other.dense && (keys == other.keys || keys.none || other.keys.none) &&
             two_parts == other.two_parts && (ring_pages > 0) == (other.ring_pages > 0);
    }
    bool holds(const Needs& other) const;
    // Of a plan that selects nothing: the same beside those that select by `others`.
    Needs beside(const Keys& others) const;
  };
  static Needs needs_of(const Plan& plan, float spare) { return needs_of(plan, spare, plan.rules.budget); }
  // The same with as many tokens as the sequence's layers attend at the most, where its prompt sets that. Until it has,
  // its rows of a prompt ask for no more than the plan does.   length, decodes: of its next rows
  static Needs needs_of(const MethodState& method, std::int32_t length, bool decodes, float spare);

  // Memory for sequences whose plans need no more, and whose pages are in `pages`. Errors  kResource, kUnsupported.
  CudaRetrieval(const KvShape& shape, std::int32_t n_heads, Needs needs, const KvTables& pages,
                const CudaRetrievalOptions& options);
  const Needs& needs() const { return needs_; }

  // For measuring, see CudaRetrievalOptions.
  void draw_outcomes(float turnover, float correction, RecallBy recall_by);

  // What a row sees near it, in the numbers of the tables that it reads, and how much of what is far. Layers that read
  // everything have a number of their own for that.
  struct TwoParts {
    std::int32_t near_from = 0, near_to = 0, far_to = 0, near_from_dense = 0, far_to_dense = 0;
  };
  // Rows that decode, one a sequence: brings their state to the step whose token is the last of `cache`. Enqueues on
  // `stream`. place: CudaTables' of the sequence.
  struct Row {
    const SequenceCache* cache = nullptr;
    MethodState* method = nullptr;
    std::int32_t place = -1, number = 0;  // number: among the sequences of the step
    // Out, of layers that select, all the same where no prompt sets budgets: SlotRows::anew, and tokens that are
    // attended (as a whole: without what is selected).
    std::int32_t anew = 0, attended_tokens = 0;
    TwoParts parts;  // out, where methods see in two parts
  };
  void prepare(Row& row, const KvTables& pages, const Stream& stream);
  // Before and after the prepare() of all rows of a step.
  void begin_rows();
  void send_rows(const Stream& stream);
  // Row::anew and Row::attended_tokens in one layer, by Row::number; null where they are the same in all.
  struct LayerRows {
    const std::int32_t *anew = nullptr, *attended = nullptr;
  };
  LayerRows layer_rows(std::int32_t layer) const;
  // The same for a prompt whose windows select: its next n rows, which are at the end of `cache`.
  void prepare_prompt(const SequenceCache& cache, std::int32_t place, std::int32_t n, const KvTables& pages,
                      const Stream& stream);
  // Tokens [first, first + n) of a prompt are in `keys`, of its sequence key_slot and layer key_layer, and so are all
  // before them: what they complete of the index, or their pages where the layer reads everything.
  struct Prompt {
    const SequenceCache* cache = nullptr;
    MethodState* method = nullptr;
    std::int32_t place = -1, first = 0, n = 0, left = 0;  // left: as SequenceRows::prefill_left
    std::int32_t key_slot = 0, key_layer = 0;
  };
  void take_prompt(const Prompt& prompt, std::int32_t layer, const KvTables& keys, const Stream& stream);
  // Pages on the device: take_prompt() gains something by being called.
  bool takes_prompts_in_pages() const { return lists_ != nullptr; }

  // -1: the layer attends everything.
  std::int32_t slot_layer(std::int32_t layer) const { return number_[static_cast<std::size_t>(layer)]; }
  // Where the rows' new tokens go beside their pages.
  SlotStore store(std::int32_t layer, const std::int32_t* places) const;
  // Whether recall() is what lists a step's units.
  bool recalls() const { return !(in_pages_ && by_layer()); }
  // What attention reads, and the number of `layer` in it.
  const KvTables& tables(std::int32_t layer) const {
    return slot_layer(layer) >= 0 ? slot_tables_ : in_pages_ ? pages_ : dense_tables_;
  }
  std::int32_t tables_layer(std::int32_t layer) const;
  const KvSlots& slots() const { return view_; }
  // What a place's sequence attends in a layer that selects, since its last prepare().
  struct PlaceLayer {
    SlotRules rules;
    bool everything = false;
    std::int32_t anew = 0, attended = 0;  // as Row has them
  };
  const PlaceLayer& at(std::int32_t place, std::int32_t layer) const {
    return places_[static_cast<std::size_t>(place)].layers[static_cast<std::size_t>(slot_layer(layer))];
  }
  bool two_parts() const { return needs_.two_parts; }
  bool by_layer() const { return needs_.keys.by_layer; }
  // What stands for the pages of a layer that selects as a whole.
  LayerKeys layer_keys(std::int32_t layer) const;
  // Of rows that decode: their selections, by queries as they stand for what is far, and how much is far then.
  void choose_by_layer(std::int32_t layer, const SlotRows& rows, const void* far_q, std::int32_t* far_to,
                       const CudaContext& context);
  bool raw_keys() const { return needs_.ring_pages > 0; }
  // Turned keys near the rows' newest tokens, in `layer`; no pages where keys are stored as they are attended.
  KeyRing near(std::int32_t layer, const std::int32_t* places) const {
    return {.tables = near_tables_, .places = places, .layer = layer * options_.n_places, .pages = needs_.ring_pages};
  }
  bool selects() const { return needs_.selects; }               // anything may be selected,
  bool ahead() const { return needs_.ahead; }                   // and a step before it is attended
  bool groups() const { return needs_.keys.group_tokens > 0; }  // of 1-bit keys, which close_groups() completes,
  bool closes_first() const { return needs_.newest; }           // and before choose()
  // Whether choose() lists for this step what recall() would.
  bool lists_as_chosen() const { return in_pages_ && selects() && groups() && !needs_.keys.by_key; }
  void choose(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
              const CudaContext& context);
  // Whether choose() for the next step goes by the scores that the one for this step left in its memory. There are two
  // of these, in turn; each is free again once the choice for the next step has ended.
  bool shares_scores() const { return needs_.ahead && groups() && !in_pages_; }
  int next_scores() const { return 1 - scores_; }
  // Whether a choice for the next step must not begin before that for this one has ended.
  bool chooses_in_turn() const { return needs_.by_mass || shares_scores(); }
  void recall(SelectWhen when, std::int32_t layer, const SlotRows& rows, const KvTables& pages,
              const CudaContext& context);
  // Pages that are there may be attended while recall() brings the others: with SlotRows::tickets, these are for
  // attention that is launched right after it. Where most heads attend what was chosen ahead it costs more than it
  // gains (freekv at 128K: 5.21 ms a step in place of 5.14 without corrections, the same with 20 %).
  bool merges() const {
    return options_.recall_by == RecallBy::kMerged && needs_.selects && !needs_.ahead && !two_parts() &&
           view_.n_slots > 0 && view_.unit_tokens == kPageTokens;
  }
  ArrivingSlots arriving(const std::int32_t* tickets) const { return {tickets, view_.listed_for, view_.arrived_for}; }
  // CudaRetrievalOptions::recall_by is one by the host: in place of recall() for this step, with the rows that decode.
  // It waits for the stream, so nothing of the step may be part of a graph.
  bool recalls_by_host() const { return by_host(options_.recall_by); }
  void recall_by_host(std::int32_t layer, std::span<const Row> rows, const Stream& stream);

  // Groups of 1-bit keys that the rows' new tokens complete. layer -1: all.
  void close_groups(std::int32_t layer, const SlotRows& rows, const KvTables& pages, const CudaContext& context);
  // After the last layer: the new tokens to their pages.
  void write_back(const SlotRows& rows, const KvTables& pages, const CudaContext& context);

  // Copies what was counted to the host, in the order of `stream`; count() adds it to the methods' statistics once that
  // is done.
  void fetch_counts(const Stream& stream);
  void count(std::span<const Row> rows);

  std::size_t bytes() const;  // all of it
  std::size_t slot_bytes() const { return slots_.size(); }
  std::size_t index_bytes() const { return index_.size() + (key_index_ ? key_index_->bytes() : 0); }
  std::size_t dense_bytes() const { return dense_.size(); }

 private:
  struct Place {
    std::uint64_t revision = 0;
    std::vector<PlaceLayer> layers;  // that select; one where none does
    std::int32_t decoded = -1;       // the length of the last step that decoded here
    std::int32_t indexed = 0;        // tokens that the index has, or those of its open page or group
    std::int32_t dense = 0;          // tokens that the layers which read everything have
    std::vector<SlotCounts> counts;
    ClusterUnit clusters;
  };
  static Needs needs_of(const Plan& plan, float spare, std::int32_t budget);
  static SlotRules rules_of(const Plan& plan, std::int32_t budget);
  // Of a layer, in a table of such units, which the plan may have no say in. number: among those that select.
  SlotRules rules_in(const MethodState& method, std::size_t number) const;
  void fill_ring(std::int32_t place, std::int32_t n_tokens, std::int32_t recent, const KvTables& pages,
                 const CudaContext& context);
  void index_keys(Place& p, std::int32_t place, std::int32_t n_tokens, const KvTables& pages,
                  const CudaContext& context);
  void send_shares(const Row& row, const Stream& stream);
  void count_by_layer(const Row& row);
  TwoParts parts_of(const Plan& plan, const SlotRules& slots, std::int32_t n_tokens) const;
  static std::int32_t attended_by(const SlotRules& rules, std::int32_t n, std::int32_t grouped);
  std::size_t rank_stride() const { return (static_cast<std::size_t>(view_.max_pages) + 3) / 4 * 4; }
  void begin_place(std::int32_t place, const SequenceCache& cache, const Plan& plan, const Stream& stream);
  void build_before(const Row& row, const KvTables& pages, const Stream& stream);
  void count_layer(const Row& row, std::int32_t layer, const SlotCounts& gained);
  std::int64_t index_bytes_read(const Row& row, std::int32_t layer, const SlotCounts& gained) const;
  std::int64_t entry_bytes_of(const Row& row, std::int32_t layer, std::int32_t n_tokens) const;
  std::int32_t entry_tokens() const { return view_.group_tokens > 0 ? view_.group_tokens : kPageTokens; }
  void build_index(std::int32_t place, std::int32_t number, std::int32_t first, std::int32_t stop,
                   std::int32_t key_slot, std::int32_t key_layer, const KvTables& keys, const CudaContext& context);
  Place& place_of(const SequenceCache& cache, const MethodState& method, std::int32_t place, const Stream& stream);

  KvShape shape_;
  CudaRetrievalOptions options_;
  Needs needs_;
  bool in_pages_;                     // what is attended stays where it is
  int scores_ = 0;                    // shares_scores(): where those of the last choice are
  std::vector<std::int32_t> number_;  // by layer: among those that select, -1 otherwise
  std::vector<std::int32_t> dense_number_;
  std::vector<std::int32_t> selecting_;  // the others: the model's, by number
  std::int32_t n_selecting_ = 0, n_dense_ = 0;
  std::int32_t n_rows_;  // that decode in a step, as a graph has them
  KvSlots view_;
  KvTables slot_tables_, dense_tables_, near_tables_, pages_;
  DeviceBuffer slots_, index_, tables_, queries_, rules_, counts_, scratch_[2], dense_, dense_blocks_, near_,
      near_blocks_, inv_freq_, shares_, numbers_there_, layers_there_, layer_rows_;  // layer_rows_: LayerRows'
  PinnedBuffer host_counts_, host_rules_, host_units_, host_layer_rows_;             // host_units_: UnitLists::n_units
  std::optional<CudaKeyIndex> key_index_;
  // Where layers share a budget, see ChooseLayer: of all places, in one piece of memory.
  struct Shares {
    LayerCut* cuts = nullptr;
    double *later = nullptr, *pools = nullptr, *thetas = nullptr;
    std::uint32_t* ranks = nullptr;
  } shares_view_;
  PinnedBuffer host_shares_, host_thetas_;
  std::vector<Place> places_;
  std::unique_ptr<CudaHostRecall> host_recall_;
  std::unique_ptr<CudaUnitLists> lists_;  // where units are lists
};

}  // namespace mneme

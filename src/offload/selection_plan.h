// How a method selects: the part of a Plan (src/recipes/compile.h) that host and device code read alike. It is in device
// memory for every (layer, sequence slot), so rows of a launch may have different budgets, schedules, pools and gates.
#pragma once

#include <cstdint>

#include "mneme/recipe_enums.h"
#include "src/kv/kv_tables_cuda.h"
#include "src/offload/unit_indexes.h"

namespace mneme {

enum class ScheduleKind : std::int32_t {
  kNone,         // no selection: sinks and window
  kEveryStep,    // with the current query
  kSpeculative,  // with the query of the previous step, unless the gate flags a KV head
  kBoundary,     // with the current query where the layer's queries moved; kept until they move again
};
enum class GateKind : std::int32_t {
  kNone,
  kCosine,  // of the query heads of a KV head or (ScheduleKind::kBoundary) of a layer, with an earlier query
  // ScheduleKind::kSpeculative: the share of softmax mass that this step's query would select and the speculative
  // selection lacks; all KV heads then select before the gate is evaluated.
  kMass,
};

// compile() makes it of a recipe. Regions as in src/selection/region/region.h, in the units of the device cache
// (set_slot_region); layers of a sequence differ only in `region.budget` and `region.n_select`.
struct SelectionPlan {
  struct Units {
    std::int32_t tokens = kKvPageTokens;  // 1 or kKvPageTokens
    // With units of one token: tokens that are selected together, aligned at position 0, and attended one by one.
    // `region.sink` is a multiple of it, and so is entry_tokens.
    std::int32_t select_tokens = 1;
    // Tokens per entry of the index: a page, or a group of 1-bit keys. (ScheduleKind::kNone with units of tokens: whole
    // entries leave the window.)
    std::int32_t entry_tokens = kKvPageTokens;
    bool operator==(const Units&) const = default;
  };
  struct Region {
    // Tokens; with pages sink and recent are multiples, recent at least one page.
    std::int32_t budget = 0, sink = 0, recent = 0;
    // Units that fit the budget beside sinks and the smallest window; with units.select_tokens above 1: tokens, beside
    // the largest window.
    std::int32_t n_select = 0;
    bool by_prompt = false;  // prompts set the budgets of their layers
    bool operator==(const Region&) const = default;
  };
  struct Scores {
    EntryKind index = EntryKind::kNone;  // kNone: random scores
    std::int32_t rank = 0;               // centroids of a page's set, coefficients of a token's sketch
    // Device: a fused selection scores arrays that only this index has (boxes that the store kernel maintains, 1-bit
    // keys, centroids of lists). Otherwise scores are of UnitIndexes::entries, of the keys, or random. Set by
    // CudaRetrieval.
    bool own_arrays = true;
    Pool pool = Pool::kMeanS;
    float alpha = 1;
    bool by_size = false;  // a unit of n tokens scores log(n) / alpha more (Centroid::by_size)
    Domain domain = Domain::kCandidates;
    bool operator==(const Scores&) const = default;
  };
  struct Gate {
    GateKind kind = GateKind::kNone;
    GatePool pool = GatePool::kMean;  // of cosines
    float tau = 1, eps = 1;           // cosine gates flag below tau, mass gates above eps
    bool of_attended = false;         // MassGate::of_attended
    // ScheduleKind::kBoundary.
    GateReference reference = GateReference::kPrevious;
    std::int32_t max_reuse = 0;  // steps that a selection is reused after its own; 0: no limit
    bool operator==(const Gate&) const = default;
  };

  ScheduleKind schedule = ScheduleKind::kNone;
  Units units;
  Region region;
  Scores scores;
  Gate gate;
  // At every step: KV heads that select together; units that may be new, 0: all.
  SelectScope scope = SelectScope::kKvHead;
  std::int32_t hold = 0;
  // Below 1: of what is attended, the fewest tokens with this share of a head's softmax (top_p_cuda.h).
  float top_p = 1;
  std::uint64_t seed = 0;  // of random scores
  bool operator==(const SelectionPlan&) const = default;
};

// Counters of one (layer, sequence slot), summed over KV heads and steps.
struct SlotCounts {
  std::uint64_t checks = 0, corrections = 0;  // gate evaluations; gate flags
  // Selected units, and the misses among them. With pages, a KV head that is flagged in the last step of a page selects
  // twice: for that step, and for the next, whose region differs.
  std::uint64_t selected = 0, missing = 0;
  std::uint64_t replaced = 0;  // selected now and not by the previous selection; counted where there are cache slots
  std::uint64_t made = 0;      // ScheduleKind::kBoundary: selections, all KV heads counted as one
  std::uint64_t pruned = 0;    // tokens that SelectionPlan::top_p left out

  SlotCounts operator-(const SlotCounts& o) const {
    return {checks - o.checks,   corrections - o.corrections, selected - o.selected,
            missing - o.missing, replaced - o.replaced,       made - o.made,
            pruned - o.pruned};
  }
};

}  // namespace mneme

// What kernels need of a compiled recipe in one layer of one sequence. It lies in device memory for every (layer,
// sequence slot), so rows of a launch may have different budgets, schedules, pools and gates.
#pragma once

#include <cstdint>

#include "src/kv/kv_tables_cuda.h"
#include "src/selection/pool/group_pool.h"

namespace mneme {

enum class SlotSchedule : std::int32_t {
  kNone,         // no selection: sinks and window
  kEveryStep,    // with the current query
  kSpeculative,  // with the query of the previous step, unless the gate flags a KV head
  kKept,         // with the current query where the layer's queries moved; kept until they move again
};
// What the gate compares. kMean, kMax, kAny: GatePool's, over the cosines of a KV head or (kKept) of a layer. kMass
// (kSpeculative): the share of softmax mass that this step's query would select and the speculative selection lacks;
// all KV heads then select before the gate is evaluated. kAttendedMass: kMass as a share of what sinks, window and the
// speculative selection hold.
enum class SlotGate : std::int32_t { kMean, kMax, kAny, kMass, kAttendedMass };

// Scores of units: by the index of a fused selection (boxes, 1-bit keys, centroids of lists); or, by the unfused one
// (unfused_select_cuda.h), at random, by the keys themselves, by UnitEntries.
enum class SlotScore : std::int32_t { kIndex, kRandom, kKeys, kEntries };

// Pools the query heads of a group before they are scored.
enum class SlotQueryPool : std::int32_t { kNone, kMax, kMean };

// Regions as in src/selection/region/region.h. Layers of a sequence differ only in `region.budget` and
// `region.n_select`.
struct SelectionPlan {
  struct Units {
    std::int32_t tokens = kKvPageTokens;  // 1 or kKvPageTokens
    // With units of one token: tokens that are selected together, aligned at position 0, and attended one by one.
    // `region.sink` is a multiple of it, and so is entry_tokens.
    std::int32_t select_tokens = 1;
    // Tokens per entry of the index: a page, or a group of 1-bit keys. (kNone with units of tokens: whole entries leave
    // the window.)
    std::int32_t entry_tokens = kKvPageTokens;
    bool operator==(const Units&) const = default;
  };
  struct Region {
    // Tokens; with pages sink and recent are multiples, recent at least one page.
    std::int32_t budget = 0, sink = 0, recent = 0;
    // Units that fit the budget beside sinks and the smallest window; with units.select_tokens above 1: tokens, beside
    // the largest window.
    std::int32_t n_select = 0;
    bool operator==(const Region&) const = default;
  };
  struct Scores {
    SlotScore by = SlotScore::kIndex;
    GroupPool pool = GroupPool::kMeanProb;
    SlotQueryPool query_pool = SlotQueryPool::kNone;  // unfused selection only
    float alpha = 1;
    std::int32_t by_size = 0;  // nonzero: a unit of n tokens scores log(n) / alpha more (Centroid::by_size)
    // Nonzero: scores are of a softmax over sinks and window too (Domain::kAttention).
    std::int32_t whole_attention = 0;
    bool operator==(const Scores&) const = default;
  };
  struct Gate {
    SlotGate kind = SlotGate::kMean;
    float tau = 1, eps = 1;       // cosine gates flag below tau, mass gates above eps
    std::int32_t max_reuse = 0;   // kKept: steps that a selection is reused after its own; 0: no limit
    std::int32_t last_asked = 0;  // kKept: nonzero: the gate compares with the query of the last selection
    bool operator==(const Gate&) const = default;
  };

  SlotSchedule schedule = SlotSchedule::kNone;
  Units units;
  Region region;
  Scores scores;
  Gate gate;
  // Unfused selection at every step: nonzero: one selection for all KV heads of the layer; units that may be new.
  std::int32_t pools_layer = 0, hold = 0;
  // Below 1: of what is attended, the fewest tokens with this share of a head's softmax (top_p_cuda.h).
  float top_p = 1;
  std::uint64_t seed = 0;  // kRandom
  bool operator==(const SelectionPlan&) const = default;
};

// Counters of one (layer, sequence slot), summed over KV heads and steps.
struct SlotCounts {
  std::uint64_t checks = 0, corrections = 0;  // gate evaluations; gate flags
  // Selected units, and the misses among them. With pages, a KV head that is flagged in the last step of a page selects
  // twice: for that step, and for the next, whose region differs.
  std::uint64_t selected = 0, missing = 0;
  std::uint64_t replaced = 0;  // selected now and not by the previous selection; counted where there are cache slots
  std::uint64_t made = 0;      // kKept: selections, all KV heads counted as one
  std::uint64_t pruned = 0;    // tokens that SelectionPlan::top_p left out

  SlotCounts operator-(const SlotCounts& o) const {
    return {checks - o.checks,   corrections - o.corrections, selected - o.selected,
            missing - o.missing, replaced - o.replaced,       made - o.made,
            pruned - o.pruned};
  }
};

}  // namespace mneme

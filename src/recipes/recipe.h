// A method as data: a choice of blocks. Nothing here knows of backends, threads or bytes, and nothing changes while it
// runs.
//
// The attended set of a step is [0, sink) + selected units + [recent_from, N) (src/blocks/region.h). A recipe says how
// the selected units come about: what a unit is, what index stands for it, which query is scored against it and how,
// how the scores of the heads of a group become one decision, how many units, and when the decision is made. A recipe
// that drops says what is left to attend when a prefill ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "src/blocks/keep_rule.h"
#include "src/blocks/window_probe.h"
#include "src/kernels/box.h"
#include "src/kernels/group_pool.h"
#include "src/kernels/kmeans.h"
#include "src/kernels/one_bit.h"

namespace mneme {

// ---- what is selected
// ---------------------------------------------------------------------------------------------------------

struct TokenUnit {
  bool operator==(const TokenUnit&) const = default;
};
// `tokens` consecutive tokens, aligned at position 0.
struct PageUnit {
  std::int32_t tokens = 32;
  bool operator==(const PageUnit&) const = default;
};
// Tokens of a prompt whose keys are alike, found by k-means over blocks of it: lists, in each KV head its own.
struct ClusterUnit {
  std::int32_t tokens = 16;      // in a cluster, on average
  std::int32_t block = 8192;     // tokens that are clustered together
  std::int32_t iterations = 10;  // of k-means
  KmeansMetric metric = KmeansMetric::kCosine;
  bool operator==(const ClusterUnit&) const = default;
};
// Tokens of an answer from one boundary of the schedule to the next.
struct SegmentUnit {
  std::int32_t smallest = 8, largest = 64;
  bool operator==(const SegmentUnit&) const = default;
};
using Unit = std::variant<TokenUnit, PageUnit, ClusterUnit, SegmentUnit>;
// Tokens of every unit; 1 where they are lists.
std::int32_t unit_tokens(const Unit& unit);

// What is selected of a prompt, and of an answer: clusters go with segments, others with themselves.
struct Units {
  Unit prompt = TokenUnit{}, output = TokenUnit{};

  Units() = default;
  template <class U>
  requires std::is_constructible_v<Unit, U> Units(U both)  // NOLINT: implicit, most methods have one unit
      : prompt(both), output(both) {}
  Units(Unit of_prompt, Unit of_output) : prompt(of_prompt), output(of_output) {}
  bool operator==(const Units&) const = default;
};

// ---- what is stored per unit to score it
// --------------------------------------------------------------------------------------

struct NoIndex {
  bool operator==(const NoIndex&) const = default;
};
// The keys themselves: exact scores. Pages are scored by the log-sum-exp of their tokens, so that softmax over pages is
// the true attention mass of each.
struct RawKeys {
  bool operator==(const RawKeys&) const = default;
};
struct Box {
  BoxKind kind = BoxKind::kMinMax;
  bool operator==(const Box&) const = default;
};
// Keys in one bit a channel. Pages are scored by the mean of their tokens' scores.
struct OneBit {
  std::int32_t group = 32;
  OneBitLevels levels = OneBitLevels::kMinMax;
  bool operator==(const OneBit&) const = default;
};
// How the keys that stand for a unit meet the probe of a layer.
enum class KeyMatch : std::uint8_t {
  kMean,  // their mean, in each query head of its own `top`
  kBest,  // each by itself, and the best counts: the `top` tokens that all heads together attended most
};
// For a whole layer: the `top` keys that window queries attended most. Scored by the cosine with the queries of all
// heads side by side.
struct Representative {
  std::int32_t top = 4;
  KeyMatch match = KeyMatch::kMean;
  bool operator==(const Representative&) const = default;
};
// The mean of the unit's keys.
struct Centroid {
  bool by_size = false;  // a unit of n tokens scores as n tokens with this key: + log(n) in a softmax
  bool operator==(const Centroid&) const = default;
};
using Index = std::variant<NoIndex, RawKeys, Box, OneBit, Representative, Centroid>;

// ---- scoring and pooling
// ------------------------------------------------------------------------------------------------------

enum class Probe : std::uint8_t {
  kCurrentQuery,   // of this step and layer
  kPreviousLayer,  // the query of the layer below at the same step, as it is
};

// Score by drawing: the floor that every method must beat. Only with NoIndex.
struct RandomScore {
  std::uint64_t seed = 1;
  bool operator==(const RandomScore&) const = default;
};
// Score by the index: dot product with keys (raw or 1-bit), upper bound of the dot product with a box.
struct IndexScore {
  bool operator==(const IndexScore&) const = default;
};
using Score = std::variant<IndexScore, RandomScore>;

enum class Alpha : std::uint8_t { kInvSqrtD, kOne };  // scale of scores before a softmax

// How the heads of a group come to one decision. Names as in FreeKV's paper.
enum class Pool : std::uint8_t {
  kNone,  // every query head selects for itself
  kMaxQ,
  kMeanQ,  // pool the queries
  kMaxQk,
  kMeanQk,  // pool the scores
  kMaxS,
  kMeanS,   // pool softmax(alpha * score)
  kConcat,  // all heads of the layer side by side: one decision for all of them
};

// ---- when
// ---------------------------------------------------------------------------------------------------------------------

// With the current query, before this step's attention.
struct EveryStep {
  bool operator==(const EveryStep&) const = default;
};

enum class GatePool : std::uint8_t {
  kMean,  // the mean cosine of the heads is below tau
  kMax,   // the largest is
  kAny,   // the smallest is: any head moved
};
// Cosine of this step's query with an earlier one, both after RoPE; flags a move when it is below tau.
struct CosineGate {
  float tau = 0.8f;  // -1: never flags; above 1: always
  GatePool pool = GatePool::kMean;
  bool operator==(const CosineGate&) const = default;
};
// What the current query would select and the selection made ahead has not: its share of the softmax over all units
// that may be chosen, as the index estimates it (missing_mass() of group_pool.h); flags a selection head where that is
// above eps. Units are scored at every step, and brought only where it matters.
struct MassGate {
  float eps = 0.05f;  // below 0: always flags; 1 or more: never
  bool operator==(const MassGate&) const = default;
};
// With the previous step's query, made while that step ran. KV heads that the gate flags attend a selection made with
// the current query; then the selection of all heads is made anew and the others use it at the next step. The gate
// compares with the previous step, KV head by KV head.
struct Speculative {
  std::variant<CosineGate, MassGate> gate;
  bool operator==(const Speculative&) const = default;
};

enum class GateReference : std::uint8_t {
  kPrevious,       // the step before
  kLastRetrieval,  // the step that made the selection: slow drift counts too
};
// With the current query, at the steps where the gate flags the layer (all its query heads together); the selection
// then stays until the next of them.
struct Boundary {
  CosineGate gate{.tau = 0.7f};
  GateReference reference = GateReference::kPrevious;
  std::int32_t max_reuse = 64;  // steps that a selection may serve after its own; 0: no limit
  bool operator==(const Boundary&) const = default;
};
using Schedule = std::variant<EveryStep, Speculative, Boundary>;

// ---- how many
// -----------------------------------------------------------------------------------------------------------------

// As many units in every layer and step as the budget holds.
struct ConstantCut {
  bool operator==(const ConstantCut&) const = default;
};
// Layers share the budget by the entropy of their scores (src/blocks/entropy_cut.h): the mean over layers is the
// budget, and none selects more than twice what it holds.
struct EntropyShare {
  bool reversed = false;    // the more even the scores, the fewer units: the ablation
  bool in_prefill = false;  // in windows of prefill too
  bool operator==(const EntropyShare&) const = default;
};
using Cutoff = std::variant<ConstantCut, EntropyShare>;

// ---- where attention sees tokens
// ----------------------------------------------------------------------------------------------------------------------

enum class Positions : std::uint8_t {
  kAbsolute,  // every token at its true distance
  kInCache,   // as if what is left out had never been: sinks stand right before the window (StreamingLLM)
  kOneAngle,  // whatever is not in the window stands at the window's far end; keys are stored before RoPE (InfLLM)
};

// Attention inside prefill is windowed: a row attends sinks, the last `recent` tokens, and, where there is a decode
// stage, units that are selected for its window: of the same units, by the same index.
struct PrefillWindow {
  std::int32_t rows = 256;                       // windows end at multiples of it
  WindowProbe probe = WindowProbe::kActivation;  // what a window scores its units with
  float question_weight = 4.0f;  // of the score by the prompt's question, where a request marks one; 0: it counts not
  bool operator==(const PrefillWindow&) const = default;
};

// ---- what is dropped for good
// -------------------------------------------------------------------------------------------------

// Rows of queries whose attention says what a token is worth: the last ones of a prefill, or all there ever were.
struct LastRows {
  std::int32_t n = 1;
  bool operator==(const LastRows&) const = default;
};
struct AllRows {
  bool operator==(const AllRows&) const = default;
};
using MassRows = std::variant<LastRows, AllRows>;

// A budget that the prompt sets, layer by layer: the beginning of a ranking whose attention norm is enough.
struct NormBudget {
  float loss = 0.01f;          // of the norm; 0: none, everything counts
  std::int32_t first = 4;      // first tokens, which are in any case
  bool first_in_norm = false;  // count them in the norms too
  NormRule rule() const { return {.loss = loss, .sink = first, .sink_in_norm = first_in_norm}; }
  bool operator==(const NormBudget&) const = default;
};

enum class Rank : std::uint8_t {
  kMass,      // by the attention that the rows gave, mean over the heads that decide together
  kPosition,  // the newest first
};

// Who drops together.
enum class DropScope : std::uint8_t { kKvHead, kLayer };

enum class DropWhen : std::uint8_t {
  kPrefillEnd,  // down to the budget, whenever a prefill ends; what decodes afterwards stays
  kOverBudget,  // then, and after every decode step: so many that the next step reads the budget at most
};

// What stays of each head's tokens: the first `sink`, the last `recent`, and of the others those that rank first. What
// is dropped is gone for every later step and turn, for forks and for saved sessions.
struct DropStage {
  Rank rank = Rank::kMass;
  std::int32_t smooth = 1;  // tokens whose mass is pooled before ranking; odd
  SmoothBy smooth_by = SmoothBy::kMean;
  DropScope scope = DropScope::kKvHead;
  DropWhen when = DropWhen::kPrefillEnd;
  bool operator==(const DropStage&) const = default;
};

// ---- where units lie
// ----------------------------------------------------------------------------------------------------------

enum class Order : std::uint8_t {
  kToken,  // keys and values lie in the pages of the sequence alone
  kUnit,   // the tokens of a list lie in one piece too, in a private copy
};

// ---- the whole
// ----------------------------------------------------------------------------------------------------------------

struct DecodeStage {
  Units units;
  Index index = NoIndex{};
  Probe probe = Probe::kCurrentQuery;
  Score score = IndexScore{};
  Pool pool = Pool::kMeanS;
  Alpha alpha = Alpha::kInvSqrtD;
  Schedule schedule = EveryStep{};
  Cutoff cutoff = ConstantCut{};
  Order order = Order::kToken;
  // Aligned neighbours that are brought with a single token from another tier of memory: 1, or 4. What is attended does
  // not change; a CPU brings nothing.
  std::int32_t unit_fetch = 1;
  bool operator==(const DecodeStage&) const = default;
};

enum class Attend : std::uint8_t {
  kEverything,  // full attention
  kRegions,     // sinks, what `decode` selects (nothing where there is none), and the window
  kKept,        // everything that `prefill_end` left
};

struct Recipe {
  std::string name;
  Attend attend = Attend::kRegions;
  std::int32_t budget = 2048;  // tokens, all included; kEverything ignores it
  std::int32_t sink = 0;
  std::int32_t recent = 0;                 // kRegions without a decode stage: budget - sink
  std::vector<std::int32_t> dense_layers;  // these attend everything
  Positions positions = Positions::kAbsolute;
  std::optional<PrefillWindow> prefill_window;  // absent: prompts are read exactly
  // The budget of a layer is what this rule counts at the end of a prefill, and everything before the first one.
  std::optional<NormBudget> norm;
  MassRows rows = LastRows{};  // that `prefill_end` and `norm` look at
  std::optional<DropStage> prefill_end;
  std::optional<DecodeStage> decode;
  bool operator==(const Recipe&) const = default;
};

}  // namespace mneme

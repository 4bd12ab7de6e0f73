// A KV method as data: which keys and values a decode step reads, and how they are selected.
//
// A recipe is a value made of named blocks. Nothing in it knows of backends, threads or bytes, and nothing in it
// changes while it runs. Take one by name and change its blocks:
//
//   mneme::Recipe recipe = mneme::make_recipe("quest");
//   recipe.budget = 512;
//   recipe.decode->units = mneme::PageUnit{32};
//   recipe.decode->index = mneme::Box{mneme::BoxKind::kCuboidMean};
//   for (const std::string& reason : mneme::check_recipe(recipe)) ...    // why it does not combine
//   mneme::print_recipe(recipe);                                         // "quest:budget=512,...,index=cuboid,..."
//
// The attended set of a step over N tokens is [0, sink), the selected units, and the last `recent` tokens. The recipe
// says what a unit is, what is stored per unit to score it (the index), which query is scored against it (the probe),
// how the scores of a group's query heads become one decision (the pool), and when the decision is made (the schedule).
// A recipe that drops says what is left to attend when a prefill ends.
//
// Threads  everything here is a value or a pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "mneme/recipe_enums.h"

namespace mneme {

// ---- units: what is selected

struct TokenUnit {
  bool operator==(const TokenUnit&) const = default;
};
// `tokens` consecutive tokens, aligned at position 0.
struct PageUnit {
  std::int32_t tokens = 32;
  bool operator==(const PageUnit&) const = default;
};
enum class KmeansMetric : std::uint8_t { kCosine, kDistance };
// Tokens of a prompt with similar keys, found by k-means over blocks of it, separately in each KV head.
struct ClusterUnit {
  std::int32_t tokens = 16;      // in a cluster, mean
  std::int32_t block = 8192;     // tokens that are clustered together, at most 65,535
  std::int32_t iterations = 10;  // of k-means
  KmeansMetric metric = KmeansMetric::kCosine;
  bool operator==(const ClusterUnit&) const = default;
};
// Tokens of an answer from one boundary of the schedule to the next.
struct SegmentUnit {
  std::int32_t smallest = 8, largest = 64;  // tokens
  bool clustered = false;  // the tokens of a segment become clusters when it leaves the window, as a prompt's do
  bool operator==(const SegmentUnit&) const = default;
};
using Unit = std::variant<TokenUnit, PageUnit, ClusterUnit, SegmentUnit>;

// Units of the prompt and of the answer: clusters go with segments, other units with themselves.
struct Units {
  Unit prompt = TokenUnit{}, output = TokenUnit{};

  Units() = default;
  template <class U>
  requires std::is_constructible_v<Unit, U> Units(U both)  // NOLINT: implicit, most methods have one unit
      : prompt(both), output(both) {}
  Units(Unit of_prompt, Unit of_output) : prompt(of_prompt), output(of_output) {}
  bool operator==(const Units&) const = default;
};

// ---- index: what is stored per unit to score it

struct NoIndex {
  bool operator==(const NoIndex&) const = default;
};
// The keys themselves: exact scores. A page scores the log-sum-exp of its tokens, so that a softmax over pages is the
// true attention mass of each.
struct RawKeys {
  bool operator==(const RawKeys&) const = default;
};
// A box around the keys of a unit, which bounds a query's scores. kMinMax: largest and smallest value of each channel;
// kCuboidMean: centre plus and minus the mean distance to it.
enum class BoxKind : std::uint8_t { kMinMax, kCuboidMean };
struct Box {
  BoxKind kind = BoxKind::kMinMax;
  bool operator==(const Box&) const = default;
};
// The two values that a 1-bit key may take: the group's extremes, or its mean plus and minus the mean deviation.
enum class OneBitLevels : std::uint8_t { kMinMax, kMeanAbs };
// Keys in one bit a channel.
struct OneBit {
  std::int32_t group = 32;  // tokens that share scale and zero point: 32, 64, 128 or 256
  OneBitLevels levels = OneBitLevels::kMinMax;
  // Tokens of the group that is not complete are candidates too, with exact scores; otherwise they are always attended.
  bool score_open_group = false;
  bool operator==(const OneBit&) const = default;
};
// How the keys that stand for a unit meet the probe of a layer.
enum class KeyMatch : std::uint8_t {
  kMean,  // their mean, in each query head of its own `top`
  kBest,  // each by itself, the best counts: the `top` tokens that all heads together attended most
};
// kCosine: of the concatenated heads. kDot: the sum over heads of q . mean, neither scaled (InfLLM).
enum class Similarity : std::uint8_t { kCosine, kDot };
// For a whole layer: the `top` keys that the queries of a prefill window attended most, scored by the cosine with the
// concatenated queries of all heads.
struct Representative {
  std::int32_t top = 4;
  KeyMatch match = KeyMatch::kMean;
  Similarity similarity = Similarity::kCosine;
  bool operator==(const Representative&) const = default;
};
// The mean of the unit's keys.
struct Centroid {
  bool by_size = false;  // a unit of n tokens scores as n tokens with this key: + log(n) in a softmax
  bool operator==(const Centroid&) const = default;
};
// k means of the keys of a page, in 4 bits, with their sizes and spreads: an estimate of what kRawKeys computes.
struct CentroidSet {
  std::int32_t k = 8;
  bool operator==(const CentroidSet&) const = default;
};
// The mean of a page's keys, and of every key `rank` coefficients in a basis fitted to the head's keys, in 4 bits: an
// estimate of every token's score. A page scores the log-sum-exp of its tokens.
struct Sketch {
  std::int32_t rank = 12;
  bool operator==(const Sketch&) const = default;
};
// Mean and variance of every channel of a page's keys, in 8 bits.
struct Moments {
  bool operator==(const Moments&) const = default;
};
using Index = std::variant<NoIndex, RawKeys, Box, OneBit, Representative, Centroid, CentroidSet, Sketch, Moments>;

// ---- probe, score, pool

// Random scores: the control that every method must beat. Only with NoIndex.
struct RandomScore {
  std::uint64_t seed = 1;
  bool operator==(const RandomScore&) const = default;
};
// By the index: dot product with keys (raw or 1-bit), upper bound of the dot product with a box.
struct IndexScore {
  bool operator==(const IndexScore&) const = default;
};
using Score = std::variant<IndexScore, RandomScore>;

enum class Alpha : std::uint8_t { kInvSqrtD, kOne };  // scale of scores before a softmax

// ---- schedule: when a selection is made

// With the current query, before the step's attention.
struct EveryStep {
  bool operator==(const EveryStep&) const = default;
};

// Cosine of this step's query with an earlier one, both post-RoPE; flags where it is below tau.
struct CosineGate {
  float tau = 0.8f;  // -1: never flags; above 1: always
  GatePool pool = GatePool::kMean;
  bool operator==(const CosineGate&) const = default;
};
// Attention mass, estimated by the index, of the units that the current query would select and the speculative
// selection lacks; flags a selection head where its share of the softmax over all candidates is above eps. Units are
// scored at every step and fetched only where the gate flags.
struct MassGate {
  float eps = 0.05f;  // below 0: always flags; 1 or more: never
  // The share is of what is attended with the speculative selection, not of the whole softmax.
  bool of_attended = false;
  bool operator==(const MassGate&) const = default;
};
// With the query of the step before, while that step runs. KV heads that the gate flags attend a selection made with
// the current query (a correction). The gate compares with the step before, KV head by KV head.
struct Speculative {
  std::variant<CosineGate, MassGate> gate;
  bool operator==(const Speculative&) const = default;
};

// With the current query, at the steps where the gate flags the layer (all its query heads together); the selection
// then serves until the next of them.
struct Boundary {
  CosineGate gate{.tau = 0.7f};
  GateReference reference = GateReference::kPrevious;
  std::int32_t max_reuse = 64;  // steps that a selection may serve after its own; 0: no limit
  bool operator==(const Boundary&) const = default;
};
using Schedule = std::variant<EveryStep, Speculative, Boundary>;

// ---- cut-off: how many units

// As many in every layer and step as the budget holds.
struct ConstantCut {
  bool operator==(const ConstantCut&) const = default;
};
// Layers share the budget by the entropy of their scores: the mean over layers is the budget, and no layer selects more
// than twice what it holds.
struct EntropyShare {
  bool reversed = false;    // more units where scores are less even: the ablation
  bool in_prefill = false;  // in windows of prefill too
  bool operator==(const EntropyShare&) const = default;
};
// Of what was selected, sinks and window, each query head keeps the fewest tokens that hold a share p of its softmax;
// a KV head attends what any of its query heads keeps, and the current token.
// Source  Twilight (Lin et al. 2025), section 4.
struct TopP {
  float p = 0.85f;  // 1 or more: everything is kept
  bool operator==(const TopP&) const = default;
};
using Cutoff = std::variant<ConstantCut, EntropyShare, TopP>;

// ---- positions and prefill

enum class Positions : std::uint8_t {
  kAbsolute,  // every token at its true distance
  kInCache,   // positions within the cache: sinks directly before the window (StreamingLLM)
  kOneAngle,  // everything outside the window at the window's far end; keys are stored pre-RoPE (InfLLM)
};

// What a window of prefill scores its units with: a weighted sum of its queries.
// Source  ActQKV (Xiao et al. 2025), equations 6 to 9.
enum class WindowProbe : std::uint8_t {
  kActivation,  // weights: distance of each query from the mean of all that the layer has seen
  kMean,        // equal weights
  kReversed,    // inverse of that distance: the ablation
};
// Windowed attention in prefill: a row attends sinks, the last `recent` tokens and, with a decode stage, the units
// selected for its window.
struct PrefillWindow {
  std::int32_t rows = 256;  // windows end at multiples of it
  WindowProbe probe = WindowProbe::kActivation;
  float question_weight = 4.0f;      // of the score by the prompt's question, where a request marks one; 0: ignored
  bool question_in_answers = false;  // the question counts in decode steps too, not only in prefill
  bool operator==(const PrefillWindow&) const = default;
};

// ---- dropping for good

// Rows of queries whose attention gives a token its mass: the last n of a prefill, or all.
struct LastRows {
  std::int32_t n = 1;
  bool operator==(const LastRows&) const = default;
};
struct AllRows {
  bool operator==(const AllRows&) const = default;
};
using MassRows = std::variant<LastRows, AllRows>;

// A budget that the prompt sets, layer by layer: the shortest prefix of a ranking whose attention norm is within `loss`
// of the whole norm.
struct NormBudget {
  float loss = 0.01f;          // share of the norm; 0: everything counts
  std::int32_t first = 4;      // first tokens, kept in any case
  bool first_in_norm = false;  // count them in both norms
  bool operator==(const NormBudget&) const = default;
};

enum class Rank : std::uint8_t {
  kMass,          // by the attention that the rows gave, mean over the heads that decide together
  kPosition,      // the newest first
  kMassVariance,  // by its mean over the rows and DropStage::gamma times its variance
  kStamp,         // pages of tokens, by the last step that attended them enough
};
enum class SmoothBy : std::uint8_t { kMean, kMax };
// Heads that drop together.
enum class DropScope : std::uint8_t { kKvHead, kLayer };
enum class DropWhen : std::uint8_t {
  kPrefillEnd,  // down to the budget, whenever a prefill ends; what decodes afterwards stays
  kOverBudget,  // then, and after every decode step, so that the next step reads the budget at most
};

// How the tokens that a drop keeps are shared out.
struct EvenShare {  // `budget` to every KV head
  bool operator==(const EvenShare&) const = default;
};
// Fewer in every layer than in the one below.   Source  PyramidKV (Cai et al. 2024), and its code.
struct PyramidShare {
  std::int32_t beta = 20;  // the last layer ranks 1 / beta of the mean
  bool operator==(const PyramidShare&) const = default;
};
// The heads of a layer share by where the layer's largest masses fall.   Source  Ada-KV (Feng et al. 2024), and its code.
struct HeadShare {
  float floor = 0.2f;  // of an even share, to every head
  bool exact = false;  // every head gets at least its floor, and the layer exactly its budget
  bool operator==(const HeadShare&) const = default;
};
// More to layers whose attention is spread over tokens and changes from row to row: by H^(1/tau1) V^(1/tau2), H the
// entropy of the observed rows' attention, V its variance over the rows.   Source  CAKE (Qin et al. 2025), and its code.
struct PreferenceShare {
  float tau1 = 1.6f, tau2 = 0.4f;
  bool operator==(const PreferenceShare&) const = default;
};
using Share = std::variant<EvenShare, PyramidShare, HeadShare, PreferenceShare>;

// Rank::kStamp: pages of consecutive stored tokens behind the sinks. A step stamps the pages that it attends enough; the
// page with the oldest stamp is dropped.   Source  RaaS (Hu et al. 2025).
struct Stamps {
  std::int32_t page = 32;   // tokens
  float above = 1e-4f;      // mass of a step that stamps a page; 0: of the half that is attended most
  bool pin_prompt = false;  // pages of a prompt go after all others
  bool operator==(const Stamps&) const = default;
};

// Keeps, of each head's tokens, the first `sink`, the last `recent` and, of the others, those that rank first. A
// dropped token is gone for every later step and turn, for forks and for saved sessions.
struct DropStage {
  Rank rank = Rank::kMass;
  float gamma = 200;        // of Rank::kMassVariance
  Stamps stamps;            // of Rank::kStamp
  std::int32_t smooth = 1;  // tokens whose mass is pooled before ranking; odd
  SmoothBy smooth_by = SmoothBy::kMean;
  DropScope scope = DropScope::kKvHead;
  DropWhen when = DropWhen::kPrefillEnd;
  Share share = EvenShare{};
  bool operator==(const DropStage&) const = default;
};

// ---- memory order

enum class Order : std::uint8_t {
  kToken,  // keys and values lie in the pages of the sequence alone
  kUnit,   // and in a private copy, the tokens of a cluster contiguous
};

// ---- the whole

struct DecodeStage {
  Units units;
  Index index = NoIndex{};
  Score score = IndexScore{};
  Pool pool = Pool::kMeanS;
  Alpha alpha = Alpha::kInvSqrtD;
  SelectScope select = SelectScope::kKvHead;
  // New units that a step may attend; the others that are attended stay from the step before, and those that score least
  // make room. 0: every step attends its own best units.   Source  ArkVale (Chen et al. 2024), its code.
  std::int32_t hold = 0;
  Domain domain = Domain::kCandidates;  // where the pool or the gate takes a softmax
  Schedule schedule = EveryStep{};
  Cutoff cutoff = ConstantCut{};
  Order order = Order::kToken;
  bool operator==(const DecodeStage&) const = default;
};

// KV heads that attend every token, whatever the others do: head h of layer l where full[l * n_kv_heads + h] is 1.
// Source  RazorAttention (Tang et al. 2024), DuoAttention (Xiao et al. 2024).
struct FullHeads {
  std::string file;  // it came from, for print_recipe()
  std::int32_t n_layers = 0, n_kv_heads = 0;
  std::vector<std::uint8_t> full;
  bool operator==(const FullHeads&) const = default;
};

enum class Attend : std::uint8_t {
  kEverything,  // full attention
  kRegions,     // sinks, what `decode` selects (nothing where it is absent), and the window
  kKept,        // everything that `prefill_end` left
};

struct Recipe {
  std::string name;  // of methods(): what print_recipe() starts from, and the label in statistics
  Attend attend = Attend::kRegions;
  std::int32_t budget = 2048;              // tokens, all included; kEverything ignores it
  std::int32_t sink = 0;                   // first tokens
  std::int32_t recent = 0;                 // last tokens; kRegions without a decode stage: budget - sink
  std::vector<std::int32_t> dense_layers;  // these attend every token
  std::optional<FullHeads> full_heads;
  Positions positions = Positions::kAbsolute;
  std::optional<PrefillWindow> prefill_window;  // absent: prompts attend every token
  // The budget of a layer is what this rule counts at the end of a prefill, and every token before the first one.
  std::optional<NormBudget> norm;
  MassRows rows = LastRows{};  // that `prefill_end` and `norm` look at
  std::optional<DropStage> prefill_end;
  std::optional<DecodeStage> decode;
  bool operator==(const Recipe&) const = default;
};

// ---- by name, and as text

struct MethodInfo {
  std::string_view name;
  std::string_view summary;  // one line
  std::string_view source;   // paper, section; empty: none
  std::string_view differs;  // from the paper, and why; empty: nothing known
};
// Every registered method, `mneme methods` prints them.
std::vector<MethodInfo> methods();

// Settings that most methods share; absent: the method's own.
struct RecipeOptions {
  std::optional<std::int32_t> budget, sink, recent;
  std::optional<std::vector<std::int32_t>> dense_layers;
};
// Errors  kOption: no such method (the known ones are named).
Recipe make_recipe(std::string_view name, const RecipeOptions& options = {});

// "quest", or "quest:unit=page:32,budget=512": a name, and overrides of its blocks in order.
//
// Errors  kOption: no such method, unknown key (the known ones are named), value that does not fit (what would is
// named), key of a block that the recipe does not have.
Recipe parse_recipe(std::string_view text);
// parse_recipe() of the text gives an equal recipe.
//
// Errors  kOption: no overrides of the method called recipe.name make this recipe.
std::string print_recipe(const Recipe& recipe);

// Why the blocks do not combine, one sentence each, whatever the model; empty: they do. A model may object still: its
// layers are fewer than dense_layers says, its own attention is a sliding window.
std::vector<std::string> check_recipe(const Recipe& recipe);

}  // namespace mneme

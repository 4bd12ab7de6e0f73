// What the fields of fields.cc share: names of values, their parsers, and the blocks of a recipe that settings are of.
// A block that a recipe does not have: kOption where a setting asks for it (`key` given), nullptr where it is printed.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/error.h"
#include "src/recipes/recipe.h"

namespace mneme::overrides {

template <typename E>
struct Name {
  std::string_view text;
  E value;
};

template <typename E>
Name(std::string_view, E) -> Name<E>;  // clang 14 does not deduce aggregates

inline constexpr std::array kPools = {Name{"none", Pool::kNone},     Name{"maxQ", Pool::kMaxQ},
                                      Name{"meanQ", Pool::kMeanQ},   Name{"maxQK", Pool::kMaxQk},
                                      Name{"meanQK", Pool::kMeanQk}, Name{"maxS", Pool::kMaxS},
                                      Name{"meanS", Pool::kMeanS},   Name{"concat", Pool::kConcat}};
inline constexpr std::array kWindowProbes = {Name{"activation", WindowProbe::kActivation},
                                             Name{"mean", WindowProbe::kMean},
                                             Name{"reversed", WindowProbe::kReversed}};
inline constexpr std::array kGatePools = {Name{"mean", GatePool::kMean}, Name{"max", GatePool::kMax},
                                          Name{"any", GatePool::kAny}};
inline constexpr std::array kMetrics = {Name{"cosine", KmeansMetric::kCosine},
                                        Name{"distance", KmeansMetric::kDistance}};
inline constexpr std::array kOrders = {Name{"token", Order::kToken}, Name{"unit", Order::kUnit}};
inline constexpr std::array kReferences = {Name{"previous", GateReference::kPrevious},
                                           Name{"last_retrieval", GateReference::kLastRetrieval}};
inline constexpr std::array kLevels = {Name{"minmax", OneBitLevels::kMinMax}, Name{"meanabs", OneBitLevels::kMeanAbs}};
inline constexpr std::array kAlphas = {Name{"inv_sqrt_d", Alpha::kInvSqrtD}, Name{"1", Alpha::kOne}};
inline constexpr std::array kDomains = {Name{"candidates", Domain::kCandidates}, Name{"attention", Domain::kAttention}};
inline constexpr std::array kAnswers = {Name{"segments", false}, Name{"clusters", true}};
inline constexpr std::array kOpenGroups = {Name{"attend", false}, Name{"score", true}};
inline constexpr std::array kSimilarities = {Name{"cosine", Similarity::kCosine}, Name{"dot", Similarity::kDot}};
inline constexpr std::array kQuestionIn = {Name{"prefill", false}, Name{"all", true}};
inline constexpr std::array kSelects = {Name{"kv_head", SelectScope::kKvHead}, Name{"layer", SelectScope::kLayer}};
inline constexpr std::array kEpsOf = {Name{"domain", false}, Name{"attended", true}};
inline constexpr std::array kPositions = {Name{"absolute", Positions::kAbsolute}, Name{"in_cache", Positions::kInCache},
                                          Name{"one_angle", Positions::kOneAngle}};
inline constexpr std::array kMatches = {Name{"mean", KeyMatch::kMean}, Name{"best", KeyMatch::kBest}};
inline constexpr std::array kRanks = {Name{"mass", Rank::kMass}, Name{"position", Rank::kPosition},
                                      Name{"mass_var", Rank::kMassVariance}, Name{"stamp", Rank::kStamp}};
inline constexpr std::array kScopes = {Name{"kv_head", DropScope::kKvHead}, Name{"layer", DropScope::kLayer}};
inline constexpr std::array kWhens = {Name{"prefill_end", DropWhen::kPrefillEnd},
                                      Name{"over_budget", DropWhen::kOverBudget}};
inline constexpr std::array kCutoffIn = {Name{"decode", false}, Name{"all", true}};
inline constexpr std::array kFlags = {Name{"no", false}, Name{"yes", true}};

[[noreturn]] void bad_value(std::string_view key, std::string_view value, std::string_view expected);

template <typename E, std::size_t N>
E parse_name(std::string_view key, std::string_view value, const std::array<Name<E>, N>& names) {
  std::vector<std::string_view> known;
  for (const auto& n : names) {
    if (n.text == value) return n.value;
    known.push_back(n.text);
  }
  bad_value(key, value, fmt::format("one of {}", fmt::join(known, ", ")));
}

template <typename E, std::size_t N>
std::string print_name(E value, const std::array<Name<E>, N>& names) {
  const auto it = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.value == value; });
  return it == names.end() ? std::string() : std::string(it->text);
}

template <typename T>
T parse_number(std::string_view key, std::string_view value, T lowest, T highest) {
  T number{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !(number >= lowest && number <= highest))
    bad_value(key, value, fmt::format("a number from {} to {}", lowest, highest));
  return number;
}

inline constexpr std::int32_t kMaxTokens = 1 << 30;

DecodeStage& decode_of(Recipe& r, std::string_view key);

template <typename T, typename V>
T& block_of(V& variant, const Recipe& r, std::string_view key, std::string_view needed) {
  T* block = std::get_if<T>(&variant);
  if (block == nullptr)
    fail(ErrorKind::kOption, "--kv {}: '{}' has no such block here; it needs {}", key, r.name, needed);
  return *block;
}

PrefillWindow& window_of(Recipe& r, std::string_view key);
bool selects_in_prefill(const Recipe& r);
std::vector<std::int32_t> parse_layers(std::string_view key, std::string_view value);
Unit parse_unit(std::string_view key, std::string_view value);

// Clusters imply segments; other settings are kept.
void set_units(std::string_view key, std::string_view value, Units& units);

std::string print_unit(const Unit& unit);
SegmentUnit parse_segments(std::string_view key, std::string_view value);
Index parse_index(std::string_view key, std::string_view value);
std::string print_index(Index index);
// All words: "none | keys | ...".
std::string_view index_values();
DropStage& drop_of(Recipe& r, std::string_view key);
// The same of a recipe that ranks so. Errors  kOption: it does not; `needed` would make it.
DropStage& drop_of(Recipe& r, std::string_view key, Rank rank, std::string_view needed);
bool ranks_by(const Recipe& r, Rank rank);
NormBudget& norm_of(Recipe& r, std::string_view key);
MassRows parse_rows(std::string_view key, std::string_view value);
void set_smooth(DropStage& stage, std::string_view key, std::string_view value);
Speculative& speculative_of(Recipe& r, std::string_view key, std::string_view needed);
CosineGate& gate_of(Recipe& r, std::string_view key);
const CosineGate* gate_of(const Recipe& r);
const MassGate* mass_gate_of(const Recipe& r);

// A gate of the same kind keeps its settings.
void set_gate(Recipe& r, std::string_view key, std::string_view value);

const Boundary* boundary_of(const Recipe& r);
Boundary& boundary_of(Recipe& r, std::string_view key);
const ClusterUnit* clusters_of(const Recipe& r);
ClusterUnit& clusters_of(Recipe& r, std::string_view key);

template <typename S>
void set_schedule(Schedule& schedule) {
  if (!std::holds_alternative<S>(schedule)) schedule = S{};
}

void parse_schedule(std::string_view key, std::string_view value, Schedule& schedule);
std::string print_schedule(const Schedule& schedule);
const OneBit* one_bit_of(const Recipe& r);
void parse_cutoff(std::string_view key, std::string_view value, Cutoff& cutoff);
std::string print_cutoff(const Cutoff& cutoff);
void parse_share(std::string_view key, std::string_view value, Share& share);
std::string print_share(const Share& share);

}  // namespace mneme::overrides

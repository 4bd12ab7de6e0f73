// Blocks of a recipe that fields are members of, and the fields that are one member: numbers and names.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "src/recipes/fields.h"
#include "src/recipes/override_values.h"

namespace mneme::overrides {

// Where a block of a recipe lies.
template <typename B>
struct Block {
  B& (*need)(Recipe&, std::string_view key);  // Errors  kOption: the recipe has none
  const B* (*find)(const Recipe&);            // null: none, or its values say nothing about this recipe
};

template <typename T, typename V>
const T* find_in(const V* variant) {
  return variant == nullptr ? nullptr : std::get_if<T>(variant);
}

template <auto kMember>
auto* in_decode(const Recipe& r) {
  return r.decode ? &((*r.decode).*kMember) : nullptr;
}

template <typename T, typename B, typename L>
FieldAccess number(const char* name, std::string values, std::string meaning, Block<B> block, T B::*member, L lowest,
                   L highest) {
  return {{.name = name,
           .values = std::move(values),
           .meaning = std::move(meaning),
           .kind = std::is_integral_v<T> ? FieldKind::kInteger : FieldKind::kNumber},
          [=](Recipe& r, std::string_view k, std::string_view v) {
            const T value = parse_number<T>(k, v, lowest, highest);
            block.need(r, k).*member = value;
          },
          [=](const Recipe& r) {
            const B* b = block.find(r);
            return b == nullptr ? std::string() : fmt::format("{}", b->*member);
          }};
}

template <typename T, typename B, std::size_t N>
FieldAccess names(const char* name, std::string meaning, Block<B> block, T B::*member,
                  const std::array<Name<T>, N>& words) {
  std::string values;
  for (const auto& word : words) values += fmt::format("{}{}", values.empty() ? "" : " | ", word.text);
  return {{.name = name,
           .values = values,
           .meaning = std::move(meaning),
           .kind = values == "no | yes" ? FieldKind::kFlag : FieldKind::kName},
          [=, &words](Recipe& r, std::string_view k, std::string_view v) {
            const T value = parse_name(k, v, words);
            block.need(r, k).*member = value;
          },
          [=, &words](const Recipe& r) {
            const B* b = block.find(r);
            return b == nullptr ? std::string() : print_name(b->*member, words);
          }};
}

inline constexpr Block<Recipe> kRegions{[](Recipe& r, std::string_view) -> Recipe& { return r; },
                                        [](const Recipe& r) { return r.attend == Attend::kEverything ? nullptr : &r; }};
inline constexpr Block<NormBudget> kNorm{norm_of, [](const Recipe& r) { return r.norm ? &*r.norm : nullptr; }};
inline constexpr Block<DropStage> kDrop{drop_of,
                                        [](const Recipe& r) { return r.prefill_end ? &*r.prefill_end : nullptr; }};
inline constexpr Block<DropStage> kVariance{
    [](Recipe& r, std::string_view k) -> DropStage& { return drop_of(r, k, Rank::kMassVariance, "rank=mass_var"); },
    [](const Recipe& r) { return ranks_by(r, Rank::kMassVariance) ? &*r.prefill_end : nullptr; }};
inline constexpr Block<Stamps> kStamps{
    [](Recipe& r, std::string_view k) -> Stamps& { return drop_of(r, k, Rank::kStamp, "rank=stamp").stamps; },
    [](const Recipe& r) { return ranks_by(r, Rank::kStamp) ? &r.prefill_end->stamps : nullptr; }};
inline constexpr Block<DecodeStage> kDecode{decode_of, [](const Recipe& r) { return r.decode ? &*r.decode : nullptr; }};
// Any selection may say it; it is printed where units are clusters.
inline constexpr Block<DecodeStage> kClusterOrder{
    decode_of, [](const Recipe& r) { return clusters_of(r) ? &*r.decode : nullptr; }};
inline constexpr Block<ClusterUnit> kClusters{clusters_of, clusters_of};
inline constexpr Block<SegmentUnit> kSegments{
    [](Recipe& r, std::string_view k) -> SegmentUnit& {
      return block_of<SegmentUnit>(decode_of(r, k).units.output, r, k, "unit=cluster:N");
    },
    [](const Recipe& r) { return r.decode ? std::get_if<SegmentUnit>(&r.decode->units.output) : nullptr; }};

// An index of a selection, a cut or a score, one alternative of a variant.
template <typename T, auto kMember, const char* kNeeded>
constexpr Block<T> kAlternative{
    [](Recipe& r, std::string_view k) -> T& { return block_of<T>(decode_of(r, k).*kMember, r, k, kNeeded); },
    [](const Recipe& r) { return find_in<T>(in_decode<kMember>(r)); }};
inline constexpr char kNeedsOneBit[] = "index=one_bit", kNeedsCentroid[] = "index=centroid",
                      kNeedsTops[] = "index=representative", kNeedsEntropy[] = "cutoff=entropy",
                      kNeedsNoIndex[] = "index=none", kNeedsBoundary[] = "schedule=boundary";
inline constexpr auto kOneBit = kAlternative<OneBit, &DecodeStage::index, kNeedsOneBit>;
inline constexpr auto kCentroid = kAlternative<Centroid, &DecodeStage::index, kNeedsCentroid>;
inline constexpr auto kRepresentative = kAlternative<Representative, &DecodeStage::index, kNeedsTops>;
inline constexpr auto kEntropy = kAlternative<EntropyShare, &DecodeStage::cutoff, kNeedsEntropy>;
inline constexpr auto kRandom = kAlternative<RandomScore, &DecodeStage::score, kNeedsNoIndex>;
inline constexpr auto kBoundary = kAlternative<Boundary, &DecodeStage::schedule, kNeedsBoundary>;

inline constexpr Block<PrefillWindow> kWindow{
    window_of, [](const Recipe& r) { return selects_in_prefill(r) ? &*r.prefill_window : nullptr; }};
inline constexpr Block<CosineGate> kCosine{gate_of, gate_of};
inline constexpr Block<MassGate> kMass{[](Recipe& r, std::string_view k) -> MassGate& {
                                         constexpr std::string_view kNeeded = "schedule=speculative with gate=mass";
                                         return block_of<MassGate>(speculative_of(r, k, kNeeded).gate, r, k, kNeeded);
                                       },
                                       mass_gate_of};

}  // namespace mneme::overrides

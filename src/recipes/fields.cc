#include "src/recipes/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "src/base/error.h"
#include "src/recipes/blocks/field_blocks.h"
#include "src/recipes/blocks/full_heads.h"
#include "src/recipes/override_values.h"

namespace mneme {
namespace {

using namespace overrides;  // NOLINT(google-build-using-namespace)

const std::vector<FieldAccess>& table() {
  static const std::vector<FieldAccess> fields = {
      FieldAccess{{.name = "budget",
                   .values = "tokens | norm",
                   .meaning = "what one KV head reads in one layer in one step, sinks, window and current token "
                              "included; norm: what the attention of the prompt's last row asks for",
                   .kind = FieldKind::kInteger,
                   .word = "norm"},
                  [](Recipe& r, std::string_view k, std::string_view v) {
                    if (v == "norm") {
                      if (!r.norm) r.norm = NormBudget{};
                    } else {
                      r.budget = parse_number<std::int32_t>(k, v, 1, kMaxTokens);
                      r.norm.reset();
                    }
                  },
                  [](const Recipe& r) {
                    if (r.attend == Attend::kEverything) return std::string();
                    return r.norm ? std::string("norm") : std::to_string(r.budget);
                  }},
      number("sink", "tokens", "first tokens that are always attended", kRegions, &Recipe::sink, 0, kMaxTokens),
      number("recent", "tokens", "last tokens that are always attended", kRegions, &Recipe::recent, 0, kMaxTokens),
      FieldAccess{{.name = "dense",
                   .values = "none | L+L+...",
                   .meaning = "layers that attend everything",
                   .kind = FieldKind::kLayers,
                   .also = "dense_layers"},
                  [](Recipe& r, std::string_view k, std::string_view v) { r.dense_layers = parse_layers(k, v); },
                  [](const Recipe& r) {
                    if (r.attend == Attend::kEverything) return std::string();
                    return r.dense_layers.empty() ? std::string("none")
                                                  : fmt::format("{}", fmt::join(r.dense_layers, "+"));
                  }},
      FieldAccess{{.name = "prefill",
                   .values = "exact | window:N",
                   .meaning = "prompts attend everything; or, N rows at a time, what the method has them attend",
                   .kind = FieldKind::kText},
                  [](Recipe& r, std::string_view k, std::string_view v) {
                    if (v == "exact") {
                      r.prefill_window.reset();
                    } else if (v.starts_with("window:")) {
                      if (!r.prefill_window) r.prefill_window.emplace();
                      r.prefill_window->rows = parse_number<std::int32_t>(k, v.substr(7), 1, kMaxTokens);
                    } else {
                      bad_value(k, v, "exact or window:N");
                    }
                  },
                  [](const Recipe& r) {
                    if (r.attend == Attend::kEverything) return std::string();
                    return r.prefill_window ? fmt::format("window:{}", r.prefill_window->rows) : std::string("exact");
                  }},
      names("positions",
            "where attention sees what is not in the window: where it is; as if nothing were left out; at the window's "
            "far end",
            kRegions, &Recipe::positions, kPositions),
      number("loss", "0 to 2", "budget=norm: share of the attention norm that may be missing", kNorm, &NormBudget::loss,
             0.0f, 2.0f),
      number("norm_first", "tokens", "budget=norm: first tokens that count in any case", kNorm, &NormBudget::first, 0,
             kMaxTokens),
      names("first_in_norm", "budget=norm: whether the norms count these tokens", kNorm, &NormBudget::first_in_norm,
            kFlags),
      FieldAccess{
          {.name = "rows",
           .values = "N | all",
           .meaning = "queries at the end of a prefill whose attention is looked at to drop, or for budget=norm",
           .kind = FieldKind::kInteger,
           .word = "all"},
          [](Recipe& r, std::string_view k, std::string_view v) {
            if (!r.norm) drop_of(r, k);
            r.rows = parse_rows(k, v);
          },
          [](const Recipe& r) {
            if (!r.norm && !r.prefill_end) return std::string();
            const auto* last = std::get_if<LastRows>(&r.rows);
            return last == nullptr ? std::string("all") : std::to_string(last->n);
          }},
      names("drop", "when the rest is dropped: at the end of a prefill, or also in every step", kDrop, &DropStage::when,
            kWhens),
      FieldAccess{
          {.name = "rank",
           .values = "mass | position | mass_var | stamp",
           .meaning = "what stays first: the most attended tokens, the newest, those of the largest mean and variance "
                      "of attention over the rows, or the pages that a step attended last",
           .kind = FieldKind::kName},
          [](Recipe& r, std::string_view k, std::string_view v) {
            DropStage& stage = drop_of(r, k);
            stage.rank = parse_name(k, v, kRanks);
            if (stage.rank != Rank::kMassVariance) stage.gamma = DropStage{}.gamma;
            if (stage.rank != Rank::kStamp) stage.stamps = {};
          },
          [](const Recipe& r) { return r.prefill_end ? print_name(r.prefill_end->rank, kRanks) : std::string(); }},
      FieldAccess{{.name = "smooth",
                   .values = "none | mean:N | max:N",
                   .meaning = "pooling of attention over N neighbours before ranking",
                   .kind = FieldKind::kText},
                  [](Recipe& r, std::string_view k, std::string_view v) { set_smooth(drop_of(r, k), k, v); },
                  [](const Recipe& r) {
                    if (!r.prefill_end) return std::string();
                    if (r.prefill_end->smooth == 1 && r.prefill_end->smooth_by == SmoothBy::kMean)
                      return std::string("none");
                    return fmt::format("{}:{}", r.prefill_end->smooth_by == SmoothBy::kMax ? "max" : "mean",
                                       r.prefill_end->smooth);
                  }},
      names("scope", "who drops together", kDrop, &DropStage::scope, kScopes),
      FieldAccess{{.name = "unit",
                   .values = "token | page:N | cluster:N",
                   .meaning = "what is selected; clusters of N tokens on average",
                   .kind = FieldKind::kText},
                  [](Recipe& r, std::string_view k, std::string_view v) { set_units(k, v, decode_of(r, k).units); },
                  [](const Recipe& r) { return r.decode ? print_unit(r.decode->units.prompt) : std::string(); }},
      FieldAccess{{.name = "segment",
                   .values = "MIN-MAX",
                   .meaning = "tokens of a segment of an answer; with unit=cluster:N",
                   .kind = FieldKind::kText},
                  [](Recipe& r, std::string_view k, std::string_view v) {
                    auto& segments = block_of<SegmentUnit>(decode_of(r, k).units.output, r, k, "unit=cluster:N");
                    const bool clustered = segments.clustered;
                    segments = parse_segments(k, v);
                    segments.clustered = clustered;
                  },
                  [](const Recipe& r) {
                    const auto* s = r.decode ? std::get_if<SegmentUnit>(&r.decode->units.output) : nullptr;
                    return s == nullptr ? std::string() : fmt::format("{}-{}", s->smallest, s->largest);
                  }},
      number("block", "tokens", "tokens of a prompt that are clustered together", kClusters, &ClusterUnit::block, 1,
             65535),
      number("iterations", "number", "iterations of k-means", kClusters, &ClusterUnit::iterations, 1, 1000),
      names("metric", "what k-means calls alike, of keys less their mean", kClusters, &ClusterUnit::metric, kMetrics),
      names("order",
            "keys and values of clusters and segments: in the sequence's pages, or in a copy too, unit after unit",
            kClusterOrder, &DecodeStage::order, kOrders),
      FieldAccess{{.name = "index",
                   .values = std::string(index_values()),
                   .meaning = "what is stored of a unit's keys to score it",
                   .kind = FieldKind::kText},
                  [](Recipe& r, std::string_view k, std::string_view v) {
                    DecodeStage& stage = decode_of(r, k);
                    if (v != print_index(stage.index))
                      stage.index = parse_index(k, v);  // the same index keeps its settings
                    if (std::holds_alternative<NoIndex>(stage.index)) {
                      if (!std::holds_alternative<RandomScore>(stage.score)) stage.score = RandomScore{};
                    } else {
                      stage.score = IndexScore{};
                    }
                  },
                  [](const Recipe& r) { return r.decode ? print_index(r.decode->index) : std::string(); }},
      FieldAccess{{.name = "group",
                   .values = "32 | 64 | 128 | 256",
                   .meaning = "tokens that share scale and zero point of 1-bit keys",
                   .kind = FieldKind::kInteger},
                  [](Recipe& r, std::string_view k, std::string_view v) {
                    const auto g = parse_number<std::int32_t>(k, v, 32, 256);
                    if (g != 32 && g != 64 && g != 128 && g != 256) bad_value(k, v, "32, 64, 128 or 256");
                    block_of<OneBit>(decode_of(r, k).index, r, k, "index=one_bit").group = g;
                  },
                  [](const Recipe& r) { return one_bit_of(r) ? std::to_string(one_bit_of(r)->group) : std::string(); }},
      names("levels", "the two values that a 1-bit key may take", kOneBit, &OneBit::levels, kLevels),
      names("by_size", "index=centroid: a unit of n tokens scores as n tokens with its centroid for a key", kCentroid,
            &Centroid::by_size, kFlags),
      names("pool", "how the query heads of a KV head decide together", kDecode, &DecodeStage::pool, kPools),
      number("top", "keys", "keys that stand for a unit, by query head: those that received most attention",
             kRepresentative, &Representative::top, 1, 4096),
      names("match", "what a probe is compared with: the mean of these keys, or each of them, the best counting",
            kRepresentative, &Representative::match, kMatches),
      names("window_probe",
            "how a window's queries weigh in what is scored: by how unusual they are, alike, by how usual", kWindow,
            &PrefillWindow::probe, kWindowProbes),
      number("question_weight", "number", "weight of the score by the prompt's question, where a request marks one",
             kWindow, &PrefillWindow::question_weight, 0.0f, 1e6f),
      FieldAccess{{.name = "cutoff",
                   .values = "constant | entropy | reversed | top_p:P",
                   .meaning = "units by layer: all the same; by how evenly its scores are spread; by how unevenly; of "
                              "what is selected, the tokens that hold a share P of the attention",
                   .kind = FieldKind::kText},
                  [](Recipe& r, std::string_view k, std::string_view v) { parse_cutoff(k, v, decode_of(r, k).cutoff); },
                  [](const Recipe& r) {
                    const bool top_p = r.decode && std::holds_alternative<TopP>(r.decode->cutoff);
                    return top_p || selects_in_prefill(r) ? print_cutoff(r.decode->cutoff) : std::string();
                  }},
      names("cutoff_in", "where layers share units by entropy: in answers, or in windows of prefill too", kEntropy,
            &EntropyShare::in_prefill, kCutoffIn),
      names("alpha", "scale of scores before a softmax", kDecode, &DecodeStage::alpha, kAlphas),
      names("domain", "what a softmax of scores normalises over: the units that may be selected; sinks and window too",
            kDecode, &DecodeStage::domain, kDomains),
      FieldAccess{
          {.name = "schedule",
           .values = "every_step | speculative | boundary",
           .meaning = "when a selection is made, and with which step's query",
           .kind = FieldKind::kName},
          [](Recipe& r, std::string_view k, std::string_view v) { parse_schedule(k, v, decode_of(r, k).schedule); },
          [](const Recipe& r) { return r.decode ? print_schedule(r.decode->schedule) : std::string(); }},
      FieldAccess{{.name = "gate",
                   .values = "cosine | mass",
                   .meaning = "what corrects a KV head (speculative): its query moved, or what the speculative "
                              "selection lacks weighs too much",
                   .kind = FieldKind::kName},
                  set_gate,
                  [](const Recipe& r) {
                    return std::string(gate_of(r) != nullptr ? "cosine" : mass_gate_of(r) != nullptr ? "mass" : "");
                  }},
      number("tau", "-1 to 1 (or more)",
             "the gate: a KV head is corrected (speculative), a layer reselects (boundary), when the cosine of its "
             "query with an earlier one is below this",
             kCosine, &CosineGate::tau, -1.0f, 2.0f),
      number("eps", "-1 to 1",
             "gate=mass: a KV head is corrected when more than this share of the estimated attention is missing; below "
             "0: always, 1: never",
             kMass, &MassGate::eps, -1.0f, 1.0f),
      names("eps_of", "gate=mass: what eps is a share of: the softmax, or the part of it that is attended", kMass,
            &MassGate::of_attended, kEpsOf),
      names("gate_pool", "which of its heads' cosines the gate looks at", kCosine, &CosineGate::pool, kGatePools),
      names("reference", "the query that a boundary's gate compares with", kBoundary, &Boundary::reference,
            kReferences),
      number("max_reuse", "steps", "steps that a selection may serve after its own between boundaries; 0: no limit",
             kBoundary, &Boundary::max_reuse, 0, kMaxTokens),
      number("seed", "number", "seed of the random control", kRandom, &RandomScore::seed, std::uint64_t{0},
             ~std::uint64_t{0}),
      names("answer",
            "with unit=cluster:N: a segment of an answer is one unit, or clusters of its own when it leaves the window",
            kSegments, &SegmentUnit::clustered, kAnswers),
      names("open_group",
            "index=one_bit: tokens of the group that is not complete are always attended, or are candidates with exact "
            "scores",
            kOneBit, &OneBit::score_open_group, kOpenGroups),
      names(
          "similarity",
          "index=representative, match=mean: of the concatenated heads, or the sum of dot products with unscaled means",
          kRepresentative, &Representative::similarity, kSimilarities),
      names("question_in", "where the prompt's question counts: in windows of prefill, or in answers too", kWindow,
            &PrefillWindow::question_in_answers, kQuestionIn),
      names("select", "whose pooled scores make one selection", kDecode, &DecodeStage::select, kSelects),
      number("hold", "units",
             "new units that a step attends at most; the others stay from the step before until better ones need their "
             "room; 0: every step attends its own best",
             kDecode, &DecodeStage::hold, 0, kMaxTokens),
      number("gamma", "number", "rank=mass_var: weight of the variance beside the mean", kVariance, &DropStage::gamma,
             0.0f, 1e9f),
      number("stamp_page", "tokens", "rank=stamp: consecutive stored tokens that are dropped together", kStamps,
             &Stamps::page, 1, 1024),
      FieldAccess{{.name = "stamp",
                   .values = "mass | half",
                   .meaning = "rank=stamp: a step stamps pages that receive more than this share of its attention, or "
                              "the half that receives most",
                   .kind = FieldKind::kNumber,
                   .word = "half"},
                  [](Recipe& r, std::string_view k, std::string_view v) {
                    drop_of(r, k, Rank::kStamp, "rank=stamp").stamps.above =
                        v == "half" ? 0.0f : parse_number<float>(k, v, 1e-12f, 1.0f);
                  },
                  [](const Recipe& r) {
                    if (!ranks_by(r, Rank::kStamp)) return std::string();
                    return r.prefill_end->stamps.above == 0 ? "half" : fmt::to_string(r.prefill_end->stamps.above);
                  }},
      names("pin_prompt", "rank=stamp: pages of prompts are dropped after all others", kStamps, &Stamps::pin_prompt,
            kFlags),
      FieldAccess{{.name = "share",
                   .values = "even | pyramid:BETA | heads:FLOOR | heads_safe:FLOOR | preference:TAU1-TAU2",
                   .meaning = "what is kept: as much in every head; less in every layer than in the one below; by "
                              "where a layer's largest masses fall, with a floor for every head (safe: exactly the "
                              "budget); more in layers whose attention is spread and changes",
                   .kind = FieldKind::kText},
                  [](Recipe& r, std::string_view k, std::string_view v) { parse_share(k, v, drop_of(r, k).share); },
                  [](const Recipe& r) { return r.prefill_end ? print_share(r.prefill_end->share) : std::string(); }},
      FieldAccess{{.name = "full_heads",
                   .values = "none | FILE",
                   .meaning = "KV heads that attend everything: a line a layer, a number a head, 0.5 or more",
                   .kind = FieldKind::kText},
                  [](Recipe& r, std::string_view, std::string_view v) {
                    r.full_heads.reset();
                    if (v != "none") r.full_heads = read_full_heads(std::string(v));
                  },
                  [](const Recipe& r) {
                    if (r.attend != Attend::kRegions) return std::string();
                    return r.full_heads ? r.full_heads->file : std::string("none");
                  }},
  };
  return fields;
}

}  // namespace

std::span<const FieldAccess> field_table() {
  return table();
}

std::span<const RecipeField> recipe_fields() {
  static const std::vector<RecipeField> fields = [] {
    std::vector<RecipeField> all;
    for (const FieldAccess& access : table()) all.push_back(access.field);
    return all;
  }();
  return fields;
}

std::string_view name_of(FieldKind kind) {
  constexpr std::string_view kNames[] = {"integer", "number", "flag", "name", "text", "layers"};
  return kNames[static_cast<std::size_t>(kind)];
}

const FieldAccess* find_field(std::string_view name) {
  for (const FieldAccess& access : table())
    if (name == access.field.name || (!name.empty() && name == access.field.also)) return &access;
  return nullptr;
}

}  // namespace mneme

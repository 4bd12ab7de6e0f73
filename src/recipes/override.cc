#include "src/recipes/override.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "src/base/error.h"
#include "src/recipes/blocks/full_heads.h"
#include "src/recipes/override_values.h"

namespace mneme {
namespace {

using namespace overrides;  // NOLINT(google-build-using-namespace)

struct Key {
  OverrideKey doc;
  void (*set)(Recipe&, std::string_view key, std::string_view value);
  std::string (*get)(const Recipe&);  // empty: no such block
};

const std::array kKeys = {
    Key{{"budget", "tokens | norm",
         "what one KV head reads in one layer in one step, sinks, window and current token included; norm: what the "
         "attention of the prompt's last row asks for"},
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
    Key{{"sink", "tokens", "first tokens that are always attended"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          r.sink = parse_number<std::int32_t>(k, v, 0, kMaxTokens);
        },
        [](const Recipe& r) { return r.attend == Attend::kEverything ? "" : std::to_string(r.sink); }},
    Key{{"recent", "tokens", "last tokens that are always attended"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          r.recent = parse_number<std::int32_t>(k, v, 0, kMaxTokens);
        },
        [](const Recipe& r) { return r.attend == Attend::kEverything ? "" : std::to_string(r.recent); }},
    Key{{"dense", "none | L+L+...", "layers that attend everything"},
        [](Recipe& r, std::string_view k, std::string_view v) { r.dense_layers = parse_layers(k, v); },
        [](const Recipe& r) {
          if (r.attend == Attend::kEverything) return std::string();
          return r.dense_layers.empty() ? std::string("none") : fmt::format("{}", fmt::join(r.dense_layers, "+"));
        }},
    Key{{"prefill", "exact | window:N",
         "prompts attend everything; or, N rows at a time, what the method has them attend"},
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
    Key{{"positions", "absolute | in_cache | one_angle",
         "where attention sees what is not in the window: where it is; as if nothing were left out; at the window's "
         "far end"},
        [](Recipe& r, std::string_view k, std::string_view v) { r.positions = parse_name(k, v, kPositions); },
        [](const Recipe& r) {
          return r.attend == Attend::kEverything ? std::string() : print_name(r.positions, kPositions);
        }},
    Key{{"loss", "0 to 2", "budget=norm: share of the attention norm that may be missing"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          norm_of(r, k).loss = parse_number<float>(k, v, 0.0f, 2.0f);
        },
        [](const Recipe& r) { return r.norm ? fmt::format("{}", r.norm->loss) : std::string(); }},
    Key{{"norm_first", "tokens", "budget=norm: first tokens that count in any case"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          norm_of(r, k).first = parse_number<std::int32_t>(k, v, 0, kMaxTokens);
        },
        [](const Recipe& r) { return r.norm ? std::to_string(r.norm->first) : std::string(); }},
    Key{{"first_in_norm", "no | yes", "budget=norm: whether the norms count these tokens"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          norm_of(r, k).first_in_norm = parse_name(k, v, kFlags);
        },
        [](const Recipe& r) { return r.norm ? print_name(r.norm->first_in_norm, kFlags) : std::string(); }},
    Key{{"rows", "N | all", "queries at the end of a prefill whose attention is looked at to drop, or for budget=norm"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          if (!r.norm) drop_of(r, k);
          r.rows = parse_rows(k, v);
        },
        [](const Recipe& r) {
          if (!r.norm && !r.prefill_end) return std::string();
          const auto* last = std::get_if<LastRows>(&r.rows);
          return last == nullptr ? std::string("all") : std::to_string(last->n);
        }},
    Key{{"drop", "prefill_end | over_budget",
         "when the rest is dropped: at the end of a prefill, or also in every step"},
        [](Recipe& r, std::string_view k, std::string_view v) { drop_of(r, k).when = parse_name(k, v, kWhens); },
        [](const Recipe& r) { return r.prefill_end ? print_name(r.prefill_end->when, kWhens) : std::string(); }},
    Key{{"rank", "mass | position | mass_var | stamp",
         "what stays first: the most attended tokens, the newest, those of the largest mean and variance of attention "
         "over the rows, or the pages that a step attended last"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          DropStage& stage = drop_of(r, k);
          stage.rank = parse_name(k, v, kRanks);
          if (stage.rank != Rank::kMassVariance) stage.gamma = DropStage{}.gamma;
          if (stage.rank != Rank::kStamp) stage.stamps = {};
        },
        [](const Recipe& r) { return r.prefill_end ? print_name(r.prefill_end->rank, kRanks) : std::string(); }},
    Key{{"smooth", "none | mean:N | max:N", "pooling of attention over N neighbours before ranking"},
        [](Recipe& r, std::string_view k, std::string_view v) { set_smooth(drop_of(r, k), k, v); },
        [](const Recipe& r) {
          if (!r.prefill_end) return std::string();
          if (r.prefill_end->smooth == 1 && r.prefill_end->smooth_by == SmoothBy::kMean) return std::string("none");
          return fmt::format("{}:{}", r.prefill_end->smooth_by == SmoothBy::kMax ? "max" : "mean",
                             r.prefill_end->smooth);
        }},
    Key{{"scope", "kv_head | layer", "who drops together"},
        [](Recipe& r, std::string_view k, std::string_view v) { drop_of(r, k).scope = parse_name(k, v, kScopes); },
        [](const Recipe& r) { return r.prefill_end ? print_name(r.prefill_end->scope, kScopes) : std::string(); }},
    Key{{"unit", "token | page:N | cluster:N", "what is selected; clusters of N tokens on average"},
        [](Recipe& r, std::string_view k, std::string_view v) { set_units(k, v, decode_of(r, k).units); },
        [](const Recipe& r) { return r.decode ? print_unit(r.decode->units.prompt) : std::string(); }},
    Key{{"segment", "MIN-MAX", "tokens of a segment of an answer; with unit=cluster:N"},
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
    Key{{"block", "tokens", "of a prompt that are clustered together"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          clusters_of(r, k).block = parse_number<std::int32_t>(k, v, 1, 65535);
        },
        [](const Recipe& r) { return clusters_of(r) ? std::to_string(clusters_of(r)->block) : ""; }},
    Key{{"iterations", "number", "of k-means"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          clusters_of(r, k).iterations = parse_number<std::int32_t>(k, v, 1, 1000);
        },
        [](const Recipe& r) { return clusters_of(r) ? std::to_string(clusters_of(r)->iterations) : ""; }},
    Key{{"metric", "cosine | distance", "what k-means calls alike, of keys less their mean"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          clusters_of(r, k).metric = parse_name(k, v, kMetrics);
        },
        [](const Recipe& r) { return clusters_of(r) ? print_name(clusters_of(r)->metric, kMetrics) : ""; }},
    Key{{"order", "token | unit",
         "keys and values of clusters and segments: in the sequence's pages, or in a copy too, "
         "unit after unit"},
        [](Recipe& r, std::string_view k, std::string_view v) { decode_of(r, k).order = parse_name(k, v, kOrders); },
        [](const Recipe& r) { return clusters_of(r) ? print_name(r.decode->order, kOrders) : ""; }},
    Key{{"unit_fetch", "1 | 4",
         "tokens that come to a device at once from the host's memory: the one that is missing, or its aligned four"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          if (v != "1" && v != "4") bad_value(k, v, "1 or 4");
          decode_of(r, k).unit_fetch = v == "4" ? 4 : 1;
        },
        [](const Recipe& r) {
          if (!r.decode || (unit_tokens(r.decode->units.prompt) != 1 && r.decode->unit_fetch == 1))
            return std::string();
          return std::to_string(r.decode->unit_fetch);
        }},
    Key{{"index", index_values(), "what is stored of a unit's keys to score it"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          DecodeStage& stage = decode_of(r, k);
          if (v != print_index(stage.index)) stage.index = parse_index(k, v);  // the same index keeps its settings
          if (std::holds_alternative<NoIndex>(stage.index)) {
            if (!std::holds_alternative<RandomScore>(stage.score)) stage.score = RandomScore{};
          } else {
            stage.score = IndexScore{};
          }
        },
        [](const Recipe& r) { return r.decode ? print_index(r.decode->index) : std::string(); }},
    Key{{"group", "32 | 64 | 128 | 256", "tokens that share scale and zero point of 1-bit keys"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          const auto g = parse_number<std::int32_t>(k, v, 32, 256);
          if (g != 32 && g != 64 && g != 128 && g != 256) bad_value(k, v, "32, 64, 128 or 256");
          block_of<OneBit>(decode_of(r, k).index, r, k, "index=one_bit").group = g;
        },
        [](const Recipe& r) { return one_bit_of(r) ? std::to_string(one_bit_of(r)->group) : std::string(); }},
    Key{{"levels", "minmax | meanabs", "the two values that a 1-bit key may take"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          block_of<OneBit>(decode_of(r, k).index, r, k, "index=one_bit").levels = parse_name(k, v, kLevels);
        },
        [](const Recipe& r) { return one_bit_of(r) ? print_name(one_bit_of(r)->levels, kLevels) : std::string(); }},
    Key{{"by_size", "no | yes", "index=centroid: a unit of n tokens scores as n tokens with its centroid for a key"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          block_of<Centroid>(decode_of(r, k).index, r, k, "index=centroid").by_size = parse_name(k, v, kFlags);
        },
        [](const Recipe& r) {
          const auto* index = r.decode ? std::get_if<Centroid>(&r.decode->index) : nullptr;
          return index == nullptr ? std::string() : print_name(index->by_size, kFlags);
        }},
    Key{{"probe", "current | previous_layer", "the query that is scored"},
        [](Recipe& r, std::string_view k, std::string_view v) { decode_of(r, k).probe = parse_name(k, v, kProbes); },
        [](const Recipe& r) { return r.decode ? print_name(r.decode->probe, kProbes) : std::string(); }},
    Key{{"pool", "none | maxQ | meanQ | maxQK | meanQK | maxS | meanS | concat",
         "how the query heads of a KV head decide together"},
        [](Recipe& r, std::string_view k, std::string_view v) { decode_of(r, k).pool = parse_name(k, v, kPools); },
        [](const Recipe& r) { return r.decode ? print_name(r.decode->pool, kPools) : std::string(); }},
    Key{{"top", "keys", "that stand for a unit, by query head: those that received most attention"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          block_of<Representative>(decode_of(r, k).index, r, k, "index=representative").top =
              parse_number<std::int32_t>(k, v, 1, 4096);
        },
        [](const Recipe& r) {
          const auto* index = r.decode ? std::get_if<Representative>(&r.decode->index) : nullptr;
          return index == nullptr ? std::string() : std::to_string(index->top);
        }},
    Key{{"match", "mean | best",
         "what a probe is compared with: the mean of these keys, or each of them, the best counting"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          block_of<Representative>(decode_of(r, k).index, r, k, "index=representative").match =
              parse_name(k, v, kMatches);
        },
        [](const Recipe& r) {
          const auto* index = r.decode ? std::get_if<Representative>(&r.decode->index) : nullptr;
          return index == nullptr ? std::string() : print_name(index->match, kMatches);
        }},
    Key{{"window_probe", "activation | mean | reversed",
         "how a window's queries weigh in what is scored: by how unusual they are, alike, by how usual"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          window_of(r, k).probe = parse_name(k, v, kWindowProbes);
        },
        [](const Recipe& r) {
          return selects_in_prefill(r) ? print_name(r.prefill_window->probe, kWindowProbes) : "";
        }},
    Key{{"question_weight", "number", "of the score by the prompt's question, where a request marks one"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          window_of(r, k).question_weight = parse_number<float>(k, v, 0.0f, 1e6f);
        },
        [](const Recipe& r) {
          return selects_in_prefill(r) ? fmt::format("{}", r.prefill_window->question_weight) : std::string();
        }},
    Key{{"cutoff", "constant | entropy | reversed | top_p:P",
         "units by layer: all the same; by how evenly its scores are spread; by how unevenly; of what is selected, the "
         "tokens that hold a share P of the attention"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          DecodeStage& stage = decode_of(r, k);
          const auto* before = std::get_if<EntropyShare>(&stage.cutoff);
          const bool in_prefill = before != nullptr && before->in_prefill;
          if (v == "constant")
            stage.cutoff = ConstantCut{};
          else if (v.starts_with("top_p:"))
            stage.cutoff = TopP{parse_number<float>(k, v.substr(6), 0.0f, 1.0f)};
          else if (v == "entropy" || v == "reversed")
            stage.cutoff = EntropyShare{.reversed = v == "reversed", .in_prefill = in_prefill};
          else
            bad_value(k, v, "constant, entropy, reversed or top_p:P");
        },
        [](const Recipe& r) {
          if (const auto* top_p = r.decode ? std::get_if<TopP>(&r.decode->cutoff) : nullptr)
            return fmt::format("top_p:{}", top_p->p);
          if (!selects_in_prefill(r)) return std::string();
          const auto* share = std::get_if<EntropyShare>(&r.decode->cutoff);
          return std::string(share == nullptr ? "constant" : share->reversed ? "reversed" : "entropy");
        }},
    Key{{"cutoff_in", "decode | all", "where layers share units by entropy: in answers, or in windows of prefill too"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          if (v != "decode" && v != "all") bad_value(k, v, "decode or all");
          block_of<EntropyShare>(decode_of(r, k).cutoff, r, k, "cutoff=entropy").in_prefill = v == "all";
        },
        [](const Recipe& r) {
          const auto* share = r.decode ? std::get_if<EntropyShare>(&r.decode->cutoff) : nullptr;
          return std::string(share == nullptr ? "" : share->in_prefill ? "all" : "decode");
        }},
    Key{{"alpha", "inv_sqrt_d | 1", "scale of scores before a softmax"},
        [](Recipe& r, std::string_view k, std::string_view v) { decode_of(r, k).alpha = parse_name(k, v, kAlphas); },
        [](const Recipe& r) { return r.decode ? print_name(r.decode->alpha, kAlphas) : std::string(); }},
    Key{{"domain", "candidates | attention",
         "what a softmax of scores normalises over: the units that may be selected; sinks and window too"},
        [](Recipe& r, std::string_view k, std::string_view v) { decode_of(r, k).domain = parse_name(k, v, kDomains); },
        [](const Recipe& r) { return r.decode ? print_name(r.decode->domain, kDomains) : std::string(); }},
    Key{{"scan", "flat | two_level",
         "index=sketch:R or box, of pages: whether all pages are scored in full, or in long contexts those that score "
         "best by a coarse score"},
        [](Recipe& r, std::string_view k, std::string_view v) { parse_scan(k, v, decode_of(r, k).scan); },
        [](const Recipe& r) {
          return std::string(!r.decode ? "" : two_level_of(r) ? "two_level" : "flat");
        }},
    Key{{"scan_share", "0 to 1", "scan=two_level: share of the pages that is scored in full"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          two_level_of(r, k).share = parse_number<float>(k, v, 0.0f, 1.0f);
        },
        [](const Recipe& r) { return two_level_of(r) ? fmt::format("{}", two_level_of(r)->share) : std::string(); }},
    Key{{"scan_from", "tokens", "scan=two_level: all pages are scored in full until the candidates hold more"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          two_level_of(r, k).from = parse_number<std::int32_t>(k, v, 0, kMaxTokens);
        },
        [](const Recipe& r) { return two_level_of(r) ? std::to_string(two_level_of(r)->from) : std::string(); }},
    Key{{"schedule", "every_step | speculative | boundary", "when a selection is made, and with which step's query"},
        [](Recipe& r, std::string_view k, std::string_view v) { parse_schedule(k, v, decode_of(r, k).schedule); },
        [](const Recipe& r) { return r.decode ? print_schedule(r.decode->schedule) : std::string(); }},
    Key{{"gate", "cosine | mass",
         "what corrects a KV head (speculative): its query moved, or what the speculative selection lacks weighs too "
         "much"},
        set_gate,
        [](const Recipe& r) {
          return std::string(gate_of(r) != nullptr ? "cosine" : mass_gate_of(r) != nullptr ? "mass" : "");
        }},
    Key{{"tau", "-1 to 1 (or more)",
         "the gate: a KV head is corrected (speculative), a layer reselects (boundary), when the cosine of its "
         "query "
         "with an earlier one is below this"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          gate_of(r, k).tau = parse_number<float>(k, v, -1.0f, 2.0f);
        },
        [](const Recipe& r) { return gate_of(r) ? fmt::format("{}", gate_of(r)->tau) : std::string(); }},
    Key{{"eps", "-1 to 1",
         "gate=mass: a KV head is corrected when more than this share of the estimated attention is missing; below 0: "
         "always, 1: never"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          constexpr std::string_view kNeeded = "schedule=speculative with gate=mass";
          block_of<MassGate>(speculative_of(r, k, kNeeded).gate, r, k, kNeeded).eps =
              parse_number<float>(k, v, -1.0f, 1.0f);
        },
        [](const Recipe& r) { return mass_gate_of(r) ? fmt::format("{}", mass_gate_of(r)->eps) : std::string(); }},
    Key{{"eps_of", "domain | attended",
         "gate=mass: what eps is a share of: the softmax, or the part of it that is attended"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          constexpr std::string_view kNeeded = "schedule=speculative with gate=mass";
          block_of<MassGate>(speculative_of(r, k, kNeeded).gate, r, k, kNeeded).of_attended = parse_name(k, v, kEpsOf);
        },
        [](const Recipe& r) {
          return mass_gate_of(r) ? print_name(mass_gate_of(r)->of_attended, kEpsOf) : std::string();
        }},
    Key{{"gate_pool", "mean | max | any", "which of its heads' cosines the gate looks at"},
        [](Recipe& r, std::string_view k, std::string_view v) { gate_of(r, k).pool = parse_name(k, v, kGatePools); },
        [](const Recipe& r) { return gate_of(r) ? print_name(gate_of(r)->pool, kGatePools) : std::string(); }},
    Key{{"reference", "previous | last_retrieval", "the query that a boundary's gate compares with"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          boundary_of(r, k).reference = parse_name(k, v, kReferences);
        },
        [](const Recipe& r) { return boundary_of(r) ? print_name(boundary_of(r)->reference, kReferences) : ""; }},
    Key{{"max_reuse", "steps", "that a selection may serve after its own between boundaries; 0: no limit"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          boundary_of(r, k).max_reuse = parse_number<std::int32_t>(k, v, 0, kMaxTokens);
        },
        [](const Recipe& r) { return boundary_of(r) ? std::to_string(boundary_of(r)->max_reuse) : ""; }},
    Key{{"seed", "number", "of the random control"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          block_of<RandomScore>(decode_of(r, k).score, r, k, "index=none").seed =
              parse_number<std::uint64_t>(k, v, 0, ~std::uint64_t{0});
        },
        [](const Recipe& r) {
          const RandomScore* s = r.decode ? std::get_if<RandomScore>(&r.decode->score) : nullptr;
          return s == nullptr ? std::string() : std::to_string(s->seed);
        }},
    Key{{"answer", "segments | clusters",
         "with unit=cluster:N: a segment of an answer is one unit, or clusters of its own when it leaves the window"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          block_of<SegmentUnit>(decode_of(r, k).units.output, r, k, "unit=cluster:N").clustered =
              parse_name(k, v, kAnswers);
        },
        [](const Recipe& r) {
          const auto* s = r.decode ? std::get_if<SegmentUnit>(&r.decode->units.output) : nullptr;
          return s == nullptr ? std::string() : print_name(s->clustered, kAnswers);
        }},
    Key{{"page_score", "mean | lse", "index=one_bit: a page scores the mean or the log-sum-exp of its tokens"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          block_of<OneBit>(decode_of(r, k).index, r, k, "index=one_bit").page_score = parse_name(k, v, kPageScores);
        },
        [](const Recipe& r) { return one_bit_of(r) ? print_name(one_bit_of(r)->page_score, kPageScores) : ""; }},
    Key{{"open_group", "attend | score",
         "index=one_bit: tokens of the group that is not complete are always attended, or are candidates with exact "
         "scores"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          block_of<OneBit>(decode_of(r, k).index, r, k, "index=one_bit").score_open_group =
              parse_name(k, v, kOpenGroups);
        },
        [](const Recipe& r) { return one_bit_of(r) ? print_name(one_bit_of(r)->score_open_group, kOpenGroups) : ""; }},
    Key{{"similarity", "cosine | dot",
         "index=representative, match=mean: of the concatenated heads, or the sum of dot products with unscaled means"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          block_of<Representative>(decode_of(r, k).index, r, k, "index=representative").similarity =
              parse_name(k, v, kSimilarities);
        },
        [](const Recipe& r) {
          const auto* index = r.decode ? std::get_if<Representative>(&r.decode->index) : nullptr;
          return index == nullptr ? std::string() : print_name(index->similarity, kSimilarities);
        }},
    Key{{"question_in", "prefill | all",
         "where the prompt's question counts: in windows of prefill, or in answers too"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          window_of(r, k).question_in_answers = parse_name(k, v, kQuestionIn);
        },
        [](const Recipe& r) {
          return selects_in_prefill(r) ? print_name(r.prefill_window->question_in_answers, kQuestionIn) : "";
        }},
    Key{{"select", "kv_head | layer", "whose pooled scores make one selection"},
        [](Recipe& r, std::string_view k, std::string_view v) { decode_of(r, k).select = parse_name(k, v, kSelects); },
        [](const Recipe& r) { return r.decode ? print_name(r.decode->select, kSelects) : ""; }},
    Key{{"hold", "units",
         "new ones that a step attends at most; the others stay from the step before until better ones need their "
         "room; 0: "
         "every step attends its own best"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          decode_of(r, k).hold = parse_number<std::int32_t>(k, v, 0, kMaxTokens);
        },
        [](const Recipe& r) { return r.decode ? std::to_string(r.decode->hold) : std::string(); }},
    Key{{"gamma", "number", "rank=mass_var: weight of the variance beside the mean"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          drop_of(r, k, Rank::kMassVariance, "rank=mass_var").gamma = parse_number<float>(k, v, 0.0f, 1e9f);
        },
        [](const Recipe& r) { return ranks_by(r, Rank::kMassVariance) ? fmt::to_string(r.prefill_end->gamma) : ""; }},
    Key{{"stamp_page", "tokens", "rank=stamp: consecutive stored tokens that are dropped together"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          drop_of(r, k, Rank::kStamp, "rank=stamp").stamps.page = parse_number<std::int32_t>(k, v, 1, 1024);
        },
        [](const Recipe& r) {
          return ranks_by(r, Rank::kStamp) ? std::to_string(r.prefill_end->stamps.page) : std::string();
        }},
    Key{{"stamp", "mass | half",
         "rank=stamp: a step stamps pages that receive more than this share of its attention, or the half that "
         "receives most"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          drop_of(r, k, Rank::kStamp, "rank=stamp").stamps.above =
              v == "half" ? 0.0f : parse_number<float>(k, v, 1e-12f, 1.0f);
        },
        [](const Recipe& r) {
          if (!ranks_by(r, Rank::kStamp)) return std::string();
          return r.prefill_end->stamps.above == 0 ? "half" : fmt::to_string(r.prefill_end->stamps.above);
        }},
    Key{{"pin_prompt", "no | yes", "rank=stamp: pages of prompts are dropped after all others"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          drop_of(r, k, Rank::kStamp, "rank=stamp").stamps.pin_prompt = parse_name(k, v, kFlags);
        },
        [](const Recipe& r) {
          return ranks_by(r, Rank::kStamp) ? print_name(r.prefill_end->stamps.pin_prompt, kFlags) : std::string();
        }},
    Key{{"share", "even | pyramid:BETA | heads:FLOOR | heads_safe:FLOOR | preference:TAU1-TAU2",
         "what is kept: as much in every head; less in every layer than in the one below; by where a layer's largest "
         "masses fall, with a floor for every head (safe: exactly the budget); more in layers whose attention is "
         "spread and changes"},
        [](Recipe& r, std::string_view k, std::string_view v) {
          Share& share = drop_of(r, k).share;
          if (v == "even")
            share = EvenShare{};
          else if (v.starts_with("pyramid:"))
            share = PyramidShare{parse_number<std::int32_t>(k, v.substr(8), 1, 1000)};
          else if (v.starts_with("heads:"))
            share = HeadShare{.floor = parse_number<float>(k, v.substr(6), 0.0f, 1.0f)};
          else if (v.starts_with("heads_safe:"))
            share = HeadShare{.floor = parse_number<float>(k, v.substr(11), 0.0f, 1.0f), .exact = true};
          else if (const auto dash = v.find('-'); v.starts_with("preference:") && dash != v.npos)
            share = PreferenceShare{parse_number<float>(k, v.substr(11, dash - 11), 0.01f, 100.0f),
                                    parse_number<float>(k, v.substr(dash + 1), 0.01f, 100.0f)};
          else
            bad_value(k, v, "even, pyramid:BETA, heads:FLOOR, heads_safe:FLOOR or preference:TAU1-TAU2");
        },
        [](const Recipe& r) {
          if (!r.prefill_end) return std::string();
          if (const auto* p = std::get_if<PyramidShare>(&r.prefill_end->share))
            return fmt::format("pyramid:{}", p->beta);
          if (const auto* h = std::get_if<HeadShare>(&r.prefill_end->share))
            return fmt::format("{}:{}", h->exact ? "heads_safe" : "heads", h->floor);
          if (const auto* p = std::get_if<PreferenceShare>(&r.prefill_end->share))
            return fmt::format("preference:{}-{}", p->tau1, p->tau2);
          return std::string("even");
        }},
    Key{{"full_heads", "none | FILE", "KV heads that attend everything: a line a layer, a number a head, 0.5 or more"},
        [](Recipe& r, std::string_view, std::string_view v) {
          r.full_heads.reset();
          if (v != "none") r.full_heads = read_full_heads(std::string(v));
        },
        [](const Recipe& r) {
          if (r.attend != Attend::kRegions) return std::string();
          return r.full_heads ? r.full_heads->file : std::string("none");
        }},
};

// Takes the first item off a list that is not empty.
std::string_view next_item(std::string_view& list) {
  const std::size_t comma = list.find(',');
  const std::string_view item = list.substr(0, comma);
  list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  return item;
}

}  // namespace

std::span<const OverrideKey> override_keys() {
  static const std::vector<OverrideKey> docs = [] {
    std::vector<OverrideKey> d;
    for (const Key& k : kKeys) d.push_back(k.doc);
    return d;
  }();
  return docs;
}

void apply_overrides(std::string_view list, Recipe& recipe) {
  while (!list.empty()) {
    const std::string_view item = next_item(list);
    const std::size_t equal = item.find('=');
    if (equal == std::string_view::npos) fail(ErrorKind::kOption, "--kv {}: expected KEY=VALUE", item);
    const std::string_view key = item.substr(0, equal), value = item.substr(equal + 1);
    const auto it = std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& k) { return k.doc.key == key; });
    if (it == kKeys.end()) {
      std::vector<std::string_view> known;
      for (const Key& k : kKeys) known.push_back(k.doc.key);
      fail(ErrorKind::kOption, "--kv {}: no such key; there are: {}", key, fmt::join(known, ", "));
    }
    it->set(recipe, key, value);
  }
}

bool overrides_set(std::string_view list, std::string_view key) {
  while (!list.empty()) {
    const std::string_view item = next_item(list);
    if (item.substr(0, item.find('=')) == key) return true;
  }
  return false;
}

std::string override_value(const Recipe& recipe, std::string_view key) {
  for (const Key& k : kKeys)
    if (k.doc.key == key) return k.get(recipe);
  return {};
}

std::string override_list(const Recipe& recipe) {
  std::string list;
  for (const Key& k : kKeys)
    if (const std::string value = k.get(recipe); !value.empty())
      list += fmt::format("{}{}={}", list.empty() ? "" : ",", k.doc.key, value);
  return list;
}

}  // namespace mneme

#include "src/recipes/blocks/check_blocks.h"

#include <fmt/format.h>

#include "src/selection/summary/sketch.h"

namespace mneme {

void check_summaries(const Recipe& r, std::vector<std::string>& reasons) {
  const DecodeStage& stage = *r.decode;
  const auto* set = std::get_if<CentroidSet>(&stage.index);
  const auto* sketch = std::get_if<Sketch>(&stage.index);
  const bool moments = std::holds_alternative<Moments>(stage.index);
  if (set == nullptr && sketch == nullptr && !moments) return;
  const bool tokens = std::holds_alternative<TokenUnit>(stage.units.prompt);
  const std::int32_t page = unit_tokens(stage.units.prompt);
  if (tokens && sketch == nullptr)
    reasons.push_back("a unit of one token has no centroids or moments: use unit=page:N, or index=sketch:R");
  if (tokens) return;
  if (page > kMaxSummaryTokens)
    reasons.push_back(fmt::format("this index is of pages of at most {} tokens", kMaxSummaryTokens));
  if (set != nullptr && set->k > page)
    reasons.push_back(fmt::format("{} centroids of a page of {} tokens", set->k, page));
  if (sketch != nullptr && page % 8 != 0) reasons.push_back("index=sketch:R is of pages of a multiple of 8 tokens");
}

void check_domain(const Recipe& r, std::vector<std::string>& reasons) {
  const DecodeStage& stage = *r.decode;
  if (stage.domain == Domain::kCandidates) return;
  const bool softmax = stage.pool == Pool::kMeanS || stage.pool == Pool::kMaxS;
  const auto* speculative = std::get_if<Speculative>(&stage.schedule);
  const bool gate = speculative != nullptr && std::holds_alternative<MassGate>(speculative->gate);
  if (!softmax && !gate)
    reasons.push_back("domain=attention goes with a softmax: use pool=meanS or maxS, or gate=mass with pool=none");
  if (std::holds_alternative<RandomScore>(stage.score))
    reasons.push_back("domain=attention goes with scores of an index: use domain=candidates");
  if (gate && !softmax && stage.pool != Pool::kNone)
    reasons.push_back(
        "domain=attention has one attention a query head: pool probabilities (pool=meanS, maxS) or nothing");
}

void check_choice(const Recipe& r, std::vector<std::string>& reasons) {
  const DecodeStage& stage = *r.decode;
  const auto* representative = std::get_if<Representative>(&stage.index);
  const bool every_step = std::holds_alternative<EveryStep>(stage.schedule),
             layer = stage.select == SelectScope::kLayer;
  const bool lists = std::holds_alternative<ClusterUnit>(stage.units.prompt);
  if (layer || stage.hold > 0) {
    if (!every_step) reasons.push_back("select=layer and hold=UNITS go with schedule=every_step");
    if (lists || representative != nullptr)
      reasons.push_back("select=layer and hold=UNITS are of tokens and pages with an index a KV head");
    if (std::holds_alternative<RandomScore>(stage.score))
      reasons.push_back("the random control has no scores to compare");
  }
  const bool pools_scores = stage.pool == Pool::kMaxQk || stage.pool == Pool::kMeanQk || stage.pool == Pool::kMaxS ||
                            stage.pool == Pool::kMeanS;
  if (layer && !pools_scores) reasons.push_back("select=layer pools scores: use pool=meanQK, maxQK, meanS or maxS");
  if (std::holds_alternative<TopP>(stage.cutoff) && (lists || representative != nullptr))
    reasons.push_back("cutoff=top_p:P is of tokens and pages with an index a KV head");
  if (representative != nullptr && representative->similarity == Similarity::kDot &&
      representative->match != KeyMatch::kMean)
    reasons.push_back("similarity=dot is with the mean of a unit's keys: use match=mean");
  const auto* bits = std::get_if<OneBit>(&stage.index);
  if (bits != nullptr && bits->score_open_group && !std::holds_alternative<TokenUnit>(stage.units.prompt))
    reasons.push_back("open_group=score is of single tokens: use unit=token");
}

// rank=mass_var and rank=stamp.
void check_rank(const Recipe& r, std::vector<std::string>& reasons) {
  const DropStage& stage = *r.prefill_end;
  const auto* last = std::get_if<LastRows>(&r.rows);
  const bool each_step = stage.when == DropWhen::kOverBudget;
  if (stage.rank == Rank::kMassVariance &&
      (each_step || r.norm || last == nullptr || last->n < 2 || r.recent < last->n))
    reasons.push_back(
        "rank=mass_var compares the rows at a prompt's end, which stay: use drop=prefill_end and rows=N, N from 2 to "
        "recent");
  if (stage.rank != Rank::kStamp) return;
  if (!each_step || r.norm || last == nullptr || last->n != 1 || stage.scope != DropScope::kKvHead || stage.smooth != 1)
    reasons.push_back(
        "rank=stamp looks at every step of a head: use drop=over_budget, rows=1, scope=kv_head, smooth=none");
  if (std::int64_t{r.sink} + r.recent + 2 * std::int64_t{stage.stamps.page} > r.budget)
    reasons.push_back(fmt::format("rank=stamp: a budget of {} does not hold sinks, window and two pages of {}",
                                  r.budget, stage.stamps.page));
}

void check_share(const Recipe& r, std::vector<std::string>& reasons) {
  const DropStage& stage = *r.prefill_end;
  if (std::holds_alternative<EvenShare>(stage.share)) return;
  if (stage.when != DropWhen::kPrefillEnd || r.norm)
    reasons.push_back("layers and heads share a budget when a prefill ends: use share=even, or drop=prefill_end");
  if (std::holds_alternative<PreferenceShare>(stage.share) && stage.rank != Rank::kMassVariance)
    reasons.push_back("layers share by the variance of their attention: use rank=mass_var");
  if (!std::holds_alternative<HeadShare>(stage.share)) return;
  if (stage.scope != DropScope::kKvHead || stage.rank != Rank::kMass)
    reasons.push_back("heads share by their masses: use scope=kv_head, rank=mass");
}

}  // namespace mneme

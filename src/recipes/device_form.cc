#include "src/recipes/device_form.h"

#include <algorithm>
#include <iterator>

#include "src/kv/page_pool.h"
#include "src/selection/layer/entropy_cut.h"

namespace mneme {
namespace {

EntryKind index_of(const Plan& plan) {
  return plan.selection.scores.index;
}

bool in_whole_pages(const RegionRules& rules) {
  return rules.sink % kPageTokens == 0 && rules.recent % kPageTokens == 0;
}

bool of_pages_of_32(const Plan& plan) {
  return plan.unit == UnitKind::kPage && plan.rules.unit_tokens == kPageTokens;
}

bool of_pages(const Plan& plan) {
  return of_pages_of_32(plan) && in_whole_pages(plan.rules);
}

// Whether one score per KV head is pooled from its query heads' scores.
bool pools_group(const Plan& plan) {
  return pools_scores(plan.selection.scores.pool) || (plan.by_query_head() && plan.shape.group() == 1);
}

bool has_fused_head_dim(const Plan& plan) {
  return std::find(std::begin(kFusedHeadDims), std::end(kFusedHeadDims), plan.shape.head_dim) !=
         std::end(kFusedHeadDims);
}

bool covers_pages(const Plan& plan) {
  return of_pages(plan) && index_of(plan) == EntryKind::kMinMaxBox;
}

bool covers_small_pages(const Plan& plan) {
  return plan.unit == UnitKind::kPage && plan.rules.unit_tokens > 1 && !of_pages(plan) &&
         index_of(plan) == EntryKind::kMinMaxBox;
}

bool covers_tokens(const Plan& plan) {
  const bool scores_open_group = plan.rules.entry_tokens != plan.index->entry_tokens();
  return plan.unit == UnitKind::kToken && is_one_bit(index_of(plan)) && !scores_open_group && !plan.keeps();
}

bool covers_sketches(const Plan& plan) {
  return plan.unit == UnitKind::kToken && index_of(plan) == EntryKind::kSketch &&
         plan.index->entry_tokens() == kPageTokens && plan.shape.group() <= 8 &&
         plan.selection.schedule == ScheduleKind::kEveryStep;
}

bool covers_sketch_pages(const Plan& plan) {
  return of_pages_of_32(plan) && index_of(plan) == EntryKind::kSketch && plan.selection.scores.rank <= 16 &&
         plan.shape.group() <= 8;
}

// Whether the best units of a KV head in a step are all there is to its selection.
bool takes_the_best(const Plan& plan) {
  return plan.selection.scope == SelectScope::kKvHead && plan.selection.hold == 0;
}

// Whether a softmax is taken over more than the candidates.
bool weighs_attention(const Plan& plan) {
  return plan.selection.scores.domain != Domain::kCandidates || plan.selection.gate.of_attended;
}

constexpr FusedSelection kFusedSelections[] = {
    {"pages of 32 by min-max boxes; sink and recent in whole pages", "page_select_cuda.cu", &covers_pages},
    {"pages of any other size by min-max boxes", "page_select_cuda.cu", &covers_small_pages},
    {"tokens by 1-bit keys; every step or one step ahead", "token_select_cuda.cu", &covers_tokens},
    {"tokens by sketches; every step, up to eight query heads a KV head", "sketch_scan_cuda.cu", &covers_sketches},
    {"pages of 32 by sketches of up to 16; any softmax and gate, up to eight query heads a KV head",
     "sketch_pages_cuda.cu", &covers_sketch_pages, true},
    {"clusters and segments by their centroids", "list_select_cuda.cu",
     [](const Plan& plan) { return plan.lists.has_value(); }},
    {"a layer's pages of 32 by every key, pre-RoPE", "layer_select_cuda.cu",
     [](const Plan& plan) { return plan.layer_selection.has_value(); }},
};

// Why no kernel reads prompts in windows, or selects for a whole layer, as the plan does.
const char* reason_of_layer(const Plan& plan) {
  if (!plan.shape.windowed.empty()) return "positions or windows of its own in a model whose layers have windows";
  if (!plan.selects()) return nullptr;
  if (!of_pages_of_32(plan)) return "units that are not pages of 32 (unit=page:32)";
  if (plan.layer_selection->similarity != Similarity::kCosine) return "similarity=dot";
  if (!plan.layer_selection->every_key(kPageTokens)) return "a page by some of its keys (match=best,top=32)";
  if (plan.window->question_in_answers) return "question_in=all";
  if (plan.key_basis != KeyBasis::kPreRope) return "selected pages at true positions (positions=one_angle)";
  return nullptr;
}

const char* reason_of_lists(const Plan& plan) {
  if (weighs_attention(plan)) return "clusters weighed against sinks and window (domain=candidates)";
  if (index_of(plan) != EntryKind::kCentroid) return "clusters by boxes (index=centroid)";
  if (plan.lists->partition.block > kDeviceClusterTokens) return "clusters of more than 8,192 tokens (block=8192)";
  if (!pools_group(plan)) return "clusters without pooled scores (pool=meanS)";
  return nullptr;
}

}  // namespace

std::span<const FusedSelection> fused_selections() {
  return kFusedSelections;
}

bool attends_in_two_parts(const Plan& plan) {
  return plan.window || plan.remote_position;
}

const char* host_reason(const Plan& plan) {
  if (plan.attend != Attend::kRegions) return nullptr;
  if (!plan.full_heads.empty()) return "full_heads=FILE";
  if (plan.layer_selection && is_eight_bit(plan.shape.kv_dtype))
    return "a layer's pages by their keys in 8 bits (kv_cache_dtype=bf16)";
  if (attends_in_two_parts(plan)) return reason_of_layer(plan);
  if (!plan.selects()) return nullptr;
  if (plan.lists) return reason_of_lists(plan);
  if (is_summary(index_of(plan)) && plan.index->entry_tokens() > kDevicePageTokens)
    return "summaries of more than 64 tokens (unit=page:64)";
  return nullptr;
}

DeviceForm device_form(const Plan& plan) {
  if (host_reason(plan) != nullptr) return DeviceForm::kHost;
  if (plan.attend != Attend::kRegions || !plan.selects()) return DeviceForm::kPlain;
  if (plan.lists || plan.layer_selection) return DeviceForm::kFused;  // the unfused selection has no lists
  if (!has_fused_head_dim(plan)) return DeviceForm::kUnfused;
  if (!takes_the_best(plan) || !pools_group(plan)) return DeviceForm::kUnfused;
  const bool fused = std::any_of(
      std::begin(kFusedSelections), std::end(kFusedSelections),
      [&](const FusedSelection& f) { return f.covers(plan) && (f.weighs_attention || !weighs_attention(plan)); });
  return fused ? DeviceForm::kFused : DeviceForm::kUnfused;
}

bool has_page_entries(const Plan& plan) {
  return plan.index != nullptr && of_pages(plan) && plan.index->entry_tokens() == kPageTokens &&
         (!covers_pages(plan) || !pools_group(plan));
}

bool attends_by_token(const Plan& plan) {
  if (attends_in_two_parts(plan) || plan.layer_selection) return false;
  if (!plan.selects()) return !in_whole_pages(plan.rules);
  if (plan.unit != UnitKind::kPage) return true;
  return !of_pages(plan) || (has_entries(index_of(plan)) && plan.index->entry_tokens() != kPageTokens);
}

void set_slot_region(const Plan& plan, std::int32_t budget, SelectionPlan& r) {
  r.region = {
      .budget = budget, .sink = plan.rules.sink, .recent = plan.rules.recent, .by_prompt = plan.norm.has_value()};
  if (plan.lists) {
    // As many tokens as the smallest window leaves: a segment of the largest size has just left it.
    r.units.tokens = r.units.entry_tokens = 1;
    r.region.n_select =
        std::max(0, r.region.budget - r.region.sink - std::max(1, r.region.recent - plan.lists->partition.largest + 1));
  } else if (attends_by_token(plan)) {
    const std::int32_t p = plan.rules.unit_tokens;
    r.units.tokens = 1, r.units.select_tokens = p, r.units.entry_tokens = std::max(p, plan.rules.entry_tokens);
    const std::int32_t window = p == 1 ? std::max(r.region.recent, 1) : std::max(r.region.recent, r.units.entry_tokens);
    r.region.n_select = std::max(0, r.region.budget - r.region.sink - window) / p * p;
  } else {
    // With two-part attention the table has pages for all local tokens, and attention masks the others.
    if (attends_in_two_parts(plan) && !plan.layer_selection)
      r.region.sink = pages_of(r.region.sink) * kPageTokens,
      r.region.recent = (pages_of(r.region.recent) + 1) * kPageTokens;
    r.region.recent = std::max(r.region.recent, kPageTokens);
    r.region.n_select = std::max(0, (r.region.budget - r.region.sink - r.region.recent) / kPageTokens);
  }
  // A budget set by the prompt may be below sinks and window, which are everything until there are more tokens. The
  // window of lists may temporarily be shorter than `recent`; the budget then selects more.
  if (plan.norm && !plan.lists) r.region.budget = std::max(r.region.budget, r.region.sink + r.region.recent);
  if (!plan.layer_selection) return;
  const std::int32_t k = plan.layer_selection->n_units;
  r.region.n_select = plan.layer_selection->entropy ? EntropyCut::most(k) : k;
}

}  // namespace mneme

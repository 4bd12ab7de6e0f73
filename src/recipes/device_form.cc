#include "src/recipes/device_form.h"

#include <algorithm>
#include <iterator>

#include "src/kv/page_pool.h"

namespace mneme {
namespace {

const DecodeStage& stage_of(const Plan& plan) {
  return *plan.recipe.decode;
}

bool of_tokens(const Plan& plan) {
  return stage_of(plan).units == Units(TokenUnit{});
}

bool in_whole_pages(const RegionRules& rules) {
  return rules.sink % kPageTokens == 0 && rules.recent % kPageTokens == 0;
}

bool of_pages(const Plan& plan) {
  return stage_of(plan).units == Units(PageUnit{kPageTokens}) && in_whole_pages(plan.rules);
}

// Whether one score per KV head is pooled from its query heads' scores.
bool pools_scores(const Plan& plan) {
  return plan.pool.scores || (plan.pool.per_query_head && plan.shape.group() == 1);
}

bool has_fused_head_dim(const Plan& plan) {
  return std::find(std::begin(kFusedHeadDims), std::end(kFusedHeadDims), plan.shape.head_dim) !=
         std::end(kFusedHeadDims);
}

bool covers_pages(const Plan& plan) {
  const auto* box = std::get_if<Box>(&stage_of(plan).index);
  return of_pages(plan) && box != nullptr && box->kind == BoxKind::kMinMax;
}

bool covers_small_pages(const Plan& plan) {
  const auto* page = std::get_if<PageUnit>(&stage_of(plan).units.prompt);
  const auto* box = std::get_if<Box>(&stage_of(plan).index);
  return page != nullptr && page->tokens > 1 && !of_pages(plan) && box != nullptr && box->kind == BoxKind::kMinMax;
}

bool covers_tokens(const Plan& plan) {
  const auto* bits = std::get_if<OneBit>(&stage_of(plan).index);
  return of_tokens(plan) && bits != nullptr && !bits->score_open_group &&
         !std::holds_alternative<Boundary>(stage_of(plan).schedule);
}

bool covers_sketches(const Plan& plan) {
  return of_tokens(plan) && std::holds_alternative<Sketch>(stage_of(plan).index) &&
         plan.index->entry_tokens() == kPageTokens && plan.shape.group() <= 8 &&
         std::holds_alternative<EveryStep>(stage_of(plan).schedule);
}

bool covers_sketch_pages(const Plan& plan) {
  const auto* sketch = std::get_if<Sketch>(&stage_of(plan).index);
  return stage_of(plan).units == Units(PageUnit{kPageTokens}) && sketch != nullptr && sketch->rank <= 16 &&
         plan.shape.group() <= 8;
}

bool summarises(const Plan& plan) {
  const Index& index = stage_of(plan).index;
  return std::holds_alternative<CentroidSet>(index) || std::holds_alternative<Sketch>(index) ||
         std::holds_alternative<Moments>(index);
}

// Whether the best units of a KV head in a step are all there is to its selection.
bool takes_the_best(const Plan& plan) {
  return stage_of(plan).select == SelectScope::kKvHead && stage_of(plan).hold == 0;
}

// Whether a softmax is taken over more than the candidates.
bool weighs_attention(const Plan& plan) {
  return plan.domain != Domain::kCandidates || (plan.mass_gate && plan.mass_gate->of_attended);
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
  if (!plan.recipe.decode) return nullptr;
  const DecodeStage& d = stage_of(plan);
  if (d.units != Units(PageUnit{kPageTokens})) return "units that are not pages of 32 (unit=page:32)";
  if (std::get<Representative>(d.index).similarity != Similarity::kCosine) return "similarity=dot";
  if (!plan.layer_selection->every_key(kPageTokens)) return "a page by some of its keys (match=best,top=32)";
  if (plan.recipe.prefill_window->question_in_answers) return "question_in=all";
  if (plan.key_basis != KeyBasis::kPreRope) return "selected pages at true positions (positions=one_angle)";
  return nullptr;
}

const char* reason_of_lists(const Plan& plan) {
  if (weighs_attention(plan)) return "clusters weighed against sinks and window (domain=candidates)";
  if (!std::holds_alternative<Centroid>(stage_of(plan).index)) return "clusters by boxes (index=centroid)";
  if (plan.lists->partition.block > kDeviceClusterTokens) return "clusters of more than 8,192 tokens (block=8192)";
  if (!pools_scores(plan)) return "clusters without pooled scores (pool=meanS)";
  return nullptr;
}

}  // namespace

std::span<const FusedSelection> fused_selections() {
  return kFusedSelections;
}

bool attends_in_two_parts(const Plan& plan) {
  return plan.recipe.prefill_window || plan.remote_position;
}

const char* host_reason(const Plan& plan) {
  if (plan.recipe.attend != Attend::kRegions) return nullptr;
  if (plan.recipe.full_heads) return "full_heads=FILE";
  if (plan.layer_selection && is_eight_bit(plan.shape.kv_dtype))
    return "a layer's pages by their keys in 8 bits (kv_cache_dtype=bf16)";
  if (attends_in_two_parts(plan)) return reason_of_layer(plan);
  if (!plan.recipe.decode) return nullptr;
  if (plan.lists) return reason_of_lists(plan);
  if (summarises(plan) && plan.index->entry_tokens() > kDevicePageTokens)
    return "summaries of more than 64 tokens (unit=page:64)";
  return nullptr;
}

DeviceForm device_form(const Plan& plan) {
  if (host_reason(plan) != nullptr) return DeviceForm::kHost;
  if (plan.recipe.attend != Attend::kRegions || !plan.recipe.decode) return DeviceForm::kPlain;
  if (plan.lists || plan.layer_selection) return DeviceForm::kFused;  // the unfused selection has no lists
  if (!has_fused_head_dim(plan)) return DeviceForm::kUnfused;
  if (!takes_the_best(plan) || !pools_scores(plan)) return DeviceForm::kUnfused;
  const bool fused = std::any_of(
      std::begin(kFusedSelections), std::end(kFusedSelections),
      [&](const FusedSelection& f) { return f.covers(plan) && (f.weighs_attention || !weighs_attention(plan)); });
  return fused ? DeviceForm::kFused : DeviceForm::kUnfused;
}

bool has_page_entries(const Plan& plan) {
  return plan.recipe.decode && of_pages(plan) && !plan.layer_selection && plan.index != nullptr &&
         plan.index->entry_tokens() == kPageTokens && (!covers_pages(plan) || !pools_scores(plan));
}

bool attends_by_token(const Plan& plan) {
  if (attends_in_two_parts(plan) || plan.layer_selection) return false;
  if (!plan.recipe.decode) return !in_whole_pages(plan.rules);
  if (plan.lists || of_tokens(plan)) return true;
  const bool indexed =
      !std::holds_alternative<NoIndex>(stage_of(plan).index) && !std::holds_alternative<RawKeys>(stage_of(plan).index);
  return !of_pages(plan) || (indexed && plan.index->entry_tokens() != kPageTokens);
}

}  // namespace mneme

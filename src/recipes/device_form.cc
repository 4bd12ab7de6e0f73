#include "src/recipes/device_form.h"

#include <algorithm>
#include <iterator>

#include "src/kv/page_pool.h"
#include "src/recipes/blocks/cpu_blocks.h"

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

bool covers_tokens(const Plan& plan) {
  const auto* bits = std::get_if<OneBit>(&stage_of(plan).index);
  return of_tokens(plan) && bits != nullptr && !bits->score_open_group &&
         !std::holds_alternative<Boundary>(stage_of(plan).schedule);
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
    {"tokens by 1-bit keys; every step or one step ahead", "token_select_cuda.cu", &covers_tokens},
    {"clusters and segments by their centroids", "list_select_cuda.cu",
     [](const Plan& plan) { return plan.lists.has_value(); }},
    {"a layer's pages of 32 by every key, pre-RoPE", "layer_select_cuda.cu",
     [](const Plan& plan) { return plan.layer_selection.has_value(); }},
};

// Why a method with windowed prefill and a selection does not run; null: it does.
const char* refusal_by_layer(const Plan& plan) {
  const DecodeStage& d = stage_of(plan);
  if (!plan.layer_selection) return "it remaps positions and selects pages by KV head";
  if (d.units != Units(PageUnit{kPageTokens})) return "its units must be pages of 32 tokens (--kv unit=page:32)";
  if (!plan.layer_selection->every_key(kPageTokens))
    return "every key of a page must represent it (--kv match=best,top=32): the mass of local tokens is not "
           "accumulated on the device";
  if (plan.key_basis != KeyBasis::kPreRope) return "keys must be stored pre-RoPE (--kv positions=one_angle)";
  if (plan.recipe.sink % kPageTokens != 0 || plan.recipe.recent % kPageTokens != 0)
    return "sink and recent must be multiples of 32";
  return nullptr;
}

const char* refusal_of_lists(const Plan& plan) {
  const DecodeStage& d = stage_of(plan);
  const auto* centroid = std::get_if<Centroid>(&d.index);
  if (centroid == nullptr) return "clusters must be selected by the means of their keys (--kv index=centroid)";
  if (plan.lists->partition.block > kDeviceClusterTokens)
    return "clusters are found in blocks of up to 8,192 tokens (--kv block=8192)";
  if (d.probe != Probe::kCurrentQuery) return "clusters are selected by the current query (--kv probe=current)";
  if (!pools_scores(plan)) return "clusters are selected by pooled scores (--kv pool=meanS, maxS, meanQK or maxQK)";
  return nullptr;
}

}  // namespace

std::span<const FusedSelection> fused_selections() {
  return kFusedSelections;
}

bool attends_in_two_parts(const Plan& plan) {
  return plan.recipe.prefill_window || plan.remote_position;
}

const char* device_refusal(const Plan& plan) {
  if (const char* block = cpu_block(plan)) return block;
  if (plan.recipe.attend != Attend::kRegions || !plan.recipe.decode) return nullptr;
  if (attends_in_two_parts(plan)) return refusal_by_layer(plan);
  if (plan.lists && weighs_attention(plan)) return "clusters are weighed among themselves (--kv domain=candidates)";
  if (plan.lists) return refusal_of_lists(plan);
  if (summarises(plan) && plan.index->entry_tokens() > kDevicePageTokens)
    return "its pages are summarised in blocks of up to 64 tokens (--kv unit=page:64)";
  return nullptr;
}

DeviceForm device_form(const Plan& plan, bool unfused) {
  if (device_refusal(plan) != nullptr) return DeviceForm::kNone;
  if (plan.recipe.attend != Attend::kRegions || !plan.recipe.decode) return DeviceForm::kPlain;
  if (plan.lists || plan.layer_selection) return DeviceForm::kFused;  // the unfused selection has no lists
  if (unfused || !takes_the_best(plan) || weighs_attention(plan) || !has_fused_head_dim(plan) || !pools_scores(plan) ||
      stage_of(plan).probe != Probe::kCurrentQuery)
    return DeviceForm::kUnfused;
  const bool fused = std::any_of(std::begin(kFusedSelections), std::end(kFusedSelections),
                                 [&](const FusedSelection& f) { return f.covers(plan); });
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

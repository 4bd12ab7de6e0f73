#include "src/engine/ranks/rank_pass.h"

#include <utility>
#include <variant>

#include "src/base/error.h"

namespace mneme {

RankPass::RankPass(std::unique_ptr<Model> part, const CpuContext& context, Collective& ranks, Options options)
    : model_(std::move(part)),
      forward_(*model_, context, &ranks, options.split),
      options_(options),
      link_(ranks, options.split) {
  forward_.set_audit(options.audit_every);
}

namespace {

bool shares_by(const Plan& plan, ShareKind kind) {
  return plan.drop && plan.drop->share == kind;
}

const char* stage_refusal(const Plan& plan) {
  if (plan.norm) return "shares its budget out over the layers (budget=norm)";
  if (shares_by(plan, ShareKind::kPyramid)) return "gives every layer a share of its own";
  if (plan.layer_selection && plan.layer_selection->entropy) return "shares its budget out over the layers";
  if (!plan.full_heads.empty()) return "names heads of the whole model (full_heads)";
  return nullptr;
}

}  // namespace

const char* rank_refusal(const Plan& plan, RankSplit split) {
  if (split == RankSplit::kLayers) return stage_refusal(plan);
  if (plan.layer_selection && plan.layer_selection->entropy) return "shares its budget out over the layers";
  if (plan.layer_selection) return "selects for all heads of a layer at once";
  if (plan.keeps()) return "has one gate for all heads of a layer (schedule=boundary)";
  if (plan.norm) return "counts its budget over all heads of a layer (budget=norm)";
  if (shares_by(plan, ShareKind::kHeads)) return "shares its budget out over the heads of a layer";
  if (shares_by(plan, ShareKind::kPreference))
    return "shares its budget out by the attention of all heads (share=preference)";
  if (plan.drop && plan.drop->scope != DropScope::kKvHead) return "drops for all heads of a layer at once";
  if (!plan.full_heads.empty()) return "names heads of the whole model (full_heads)";
  return nullptr;
}

void expect_ranks_do(const Plan& plan, RankSplit split) {
  const char* const why = rank_refusal(plan, split);
  if (why != nullptr)
    fail(ErrorKind::kUnsupported, "{} {}, which ranks do not do yet: use one rank, or a method that decides by head",
         plan.name(), why);
}

}  // namespace mneme

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

const char* stage_refusal(const Recipe& r) {
  if (r.norm) return "shares its budget out over the layers (budget=norm)";
  if (r.prefill_end && std::holds_alternative<PyramidShare>(r.prefill_end->share))
    return "gives every layer a share of its own";
  if (r.decode && std::holds_alternative<EntropyShare>(r.decode->cutoff))
    return "shares its budget out over the layers";
  if (r.full_heads) return "names heads of the whole model (full_heads)";
  return nullptr;
}

}  // namespace

const char* rank_refusal(const Plan& plan, RankSplit split) {
  const Recipe& r = plan.recipe;
  if (split == RankSplit::kLayers) return stage_refusal(r);
  if (r.decode && std::holds_alternative<EntropyShare>(r.decode->cutoff))
    return "shares its budget out over the layers";
  if (plan.layer_selection) return "selects for all heads of a layer at once";
  if (plan.reuse == Reuse::kKept) return "has one gate for all heads of a layer (schedule=boundary)";
  if (r.norm) return "counts its budget over all heads of a layer (budget=norm)";
  if (r.prefill_end && std::holds_alternative<HeadShare>(r.prefill_end->share))
    return "shares its budget out over the heads of a layer";
  if (r.prefill_end && std::holds_alternative<PreferenceShare>(r.prefill_end->share))
    return "shares its budget out by the attention of all heads (share=preference)";
  if (r.prefill_end && r.prefill_end->scope != DropScope::kKvHead) return "drops for all heads of a layer at once";
  if (r.full_heads) return "names heads of the whole model (full_heads)";
  return nullptr;
}

void expect_ranks_do(const Plan& plan, RankSplit split) {
  const char* const why = rank_refusal(plan, split);
  if (why != nullptr)
    fail(ErrorKind::kUnsupported, "{} {}, which ranks do not do yet: use one rank, or a method that decides by head",
         plan.recipe.name, why);
}

}  // namespace mneme

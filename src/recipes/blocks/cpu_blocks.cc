#include "src/recipes/blocks/cpu_blocks.h"

namespace mneme {
namespace {

const char* cpu_block_of(const DecodeStage& d) {
  const auto* segments = std::get_if<SegmentUnit>(&d.units.output);
  if (segments != nullptr && segments->clustered) return "answer=clusters";
  if (d.select != SelectScope::kKvHead) return "select=layer";
  if (d.hold > 0) return "hold=UNITS";
  if (std::holds_alternative<TopP>(d.cutoff)) return "cutoff=top_p:P";
  const auto* bits = std::get_if<OneBit>(&d.index);
  if (bits != nullptr && bits->score_open_group) return "open_group=score";
  const auto* representative = std::get_if<Representative>(&d.index);
  if (representative != nullptr && representative->similarity != Similarity::kCosine) return "similarity=dot";
  return nullptr;
}

}  // namespace

const char* cpu_block(const Plan& plan) {
  const Recipe& r = plan.recipe;
  if (r.full_heads) return "full_heads=FILE";
  if (r.prefill_window && r.prefill_window->question_in_answers) return "question_in=all";
  return r.decode ? cpu_block_of(*r.decode) : nullptr;
}

}  // namespace mneme

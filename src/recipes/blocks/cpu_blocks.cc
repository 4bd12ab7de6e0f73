#include "src/recipes/blocks/cpu_blocks.h"

namespace mneme {
namespace {

const char* cpu_block_of(const DecodeStage& d) {
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

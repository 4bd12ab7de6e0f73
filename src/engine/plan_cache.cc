#include "src/engine/plan_cache.h"

namespace mneme {

std::shared_ptr<const Plan> PlanCache::plan_for(const Recipe& recipe) {
  if (recipe.attend == Attend::kEverything) return nullptr;
  const std::lock_guard lock(mutex_);
  for (const auto& [known, plan] : plans_)
    if (known == recipe) return plan;
  std::shared_ptr<const Plan> plan = compile(recipe, shape_);
  if (plans_.size() >= kMost) plans_.clear();
  return plans_.emplace_back(recipe, std::move(plan)).second;
}

}  // namespace mneme

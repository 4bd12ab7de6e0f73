// Compiled recipes: equal recipes get one plan, as sequences share a method's index only where they share its plan.
//
// Threads  any.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/recipes/compile.h"

namespace mneme {

class PlanCache {
 public:
  explicit PlanCache(MethodShape shape) : shape_(shape) {}

  // Null: full attention. Errors  kOption: the recipe does not combine, or not with this model.
  std::shared_ptr<const Plan> plan_for(const Recipe& recipe);

 private:
  MethodShape shape_;
  std::mutex mutex_;
  std::vector<std::pair<Recipe, std::shared_ptr<const Plan>>> plans_;  // at most kMost
  static constexpr std::size_t kMost = 256;
};

}  // namespace mneme

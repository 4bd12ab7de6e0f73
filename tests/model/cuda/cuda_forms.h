// Recipes of the device's tests as a method and its overrides, and how far their logits may be from the CPU's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "src/recipes/override.h"
#include "src/recipes/recipe.h"
#include "src/recipes/recipes.h"
#include "tests/model/cuda/cuda_beside_cpu.h"

namespace mneme {

struct Form {
  const char *name, *overrides;

  // Budgets that prompts of some hundred tokens exceed, and one dense layer.
  Recipe recipe() const {
    Recipe r =
        make_recipe(name, {.budget = 320, .sink = 32, .recent = 64, .dense_layers = std::vector<std::int32_t>{1}});
    apply_overrides(overrides, r);
    return r;
  }
  std::string text() const { return std::string(name) + " " + overrides; }
};

inline const char* store_name(KvStore store) {
  return store == KvStore::kHost ? "host" : "device";
}

// The median step has the CPU's logits, and no step differs entirely: selections may differ where two scores are nearly
// equal, and a random model diverges then. Prints both errors.
inline void expect_close(std::vector<double> errors, const std::string& what, double tolerance = kTolerance) {
  std::sort(errors.begin(), errors.end());
  std::printf("%s: error of the median step %.4f, worst %.4f\n", what.c_str(), errors[errors.size() / 2],
              errors.back());
  EXPECT_LE(errors[errors.size() / 2], tolerance) << what;
  EXPECT_LE(errors.back(), 0.35) << what;
}

}  // namespace mneme

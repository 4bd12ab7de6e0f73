// The device's error for a method that it does not support.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "src/base/error.h"
#include "src/model/cuda/forward.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {

// Empty: supported.
inline std::string refusal_of(const char* name, const char* overrides, std::int32_t head_dim = 128) {
  const MethodShape shape{.n_layers = 3, .n_heads = 8, .n_kv_heads = 2, .head_dim = head_dim};
  Recipe recipe = make_recipe(name, {.budget = 512, .sink = 32});
  apply_overrides(overrides, recipe);
  try {
    CudaForward::expect_method(*compile(recipe, shape));
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    return e.what();
  }
  return "";
}

}  // namespace mneme

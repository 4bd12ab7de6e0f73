// What a method may know of a test's model.
#pragma once

#include <cstdint>

#include "src/model/model.h"
#include "src/recipes/compile.h"

namespace mneme {

inline MethodShape method_shape(const ModelConfig& c, DType kv_dtype = DType::kBF16) {
  return {.n_layers = static_cast<std::int32_t>(c.n_layers),
          .n_heads = static_cast<std::int32_t>(c.n_heads),
          .n_kv_heads = static_cast<std::int32_t>(c.n_kv_heads),
          .head_dim = static_cast<std::int32_t>(c.head_dim),
          .kv_dtype = kv_dtype,
          .sliding_window = c.windowed.empty() ? 0 : static_cast<std::int32_t>(c.sliding_window),
          .windowed = c.windowed};
}

}  // namespace mneme

// A model's sizes as caches, methods and kernels take them. Readers of checkpoints bound them far below 2^31.
#pragma once

#include "src/base/size32.h"
#include "src/formats/model_config.h"
#include "src/kv/page_pool.h"
#include "src/recipes/compile.h"

namespace mneme {

inline KvShape kv_shape_of(const ModelConfig& c, DType kv_dtype) {
  return {.n_layers = count32(c.n_layers),
          .n_kv_heads = count32(c.n_kv_heads),
          .head_dim = count32(c.head_dim),
          .dtype = kv_dtype};
}

inline MethodShape method_shape_of(const ModelConfig& c, DType kv_dtype) {
  return {.n_layers = count32(c.n_layers),
          .n_heads = count32(c.n_heads),
          .n_kv_heads = count32(c.n_kv_heads),
          .head_dim = count32(c.head_dim),
          .kv_dtype = kv_dtype,
          .sliding_window = count32(c.sliding_window),
          .windowed = c.windowed};
}

}  // namespace mneme

// A model's sizes as caches, methods and kernels take them. Readers of checkpoints bound them far below 2^31.
#pragma once

#include <algorithm>

#include "src/base/size32.h"
#include "src/formats/model_plan.h"
#include "src/kv/page_pool.h"
#include "src/recipes/compile.h"

namespace mneme {

// A layer's part of a state: the convolution's last inputs, then S of every value head (src/ops/recurrent/gated_delta.h).
inline std::int64_t state_floats_of(const DeltaConfig& d) {
  return (d.taps - 1) * d.channels() + d.value_width() * d.d_k;
}

inline KvShape kv_shape_of(const ModelConfig& c, DType kv_dtype) {
  return {.n_layers = count32(c.n_kv_layers()),
          .n_kv_heads = count32(c.n_kv_heads),
          .head_dim = count32(c.head_dim),
          .dtype = kv_dtype,
          .state_bytes = static_cast<std::size_t>(c.n_state_layers() * state_floats_of(c.delta)) * sizeof(float)};
}

// Models whose layers all have a window keep everything: their sequences are cut and forked anywhere.
inline KvWindows kv_windows_of(const ModelConfig& c) {
  KvWindows windows{.tokens = count32(c.sliding_window), .layers = c.windowed};
  return windows.n_layers() == 0 ? KvWindows{} : windows;
}

// A second RoPE is that of layers with windows, in which no method selects; keys there are rotated before they are
// stored, but the queries of all layers are turned alike.
inline bool turns_positions(const ModelConfig& c) {
  const bool scales_part = c.rope.rotary_dim != 0 && c.rope.rotary_dim != c.head_dim &&
                           (c.rope.scaling == RopeScaling::kYarn || c.rope.scaling == RopeScaling::kLongRope);
  const bool rotates_all = std::find(c.unrotated.begin(), c.unrotated.end(), true) == c.unrotated.end();
  return rotates_all && !(c.qk_norm && c.qk_norm_behind) && !scales_part && ropes_of(c).size() == 1;
}

inline MethodShape method_shape_of(const ModelConfig& c, DType kv_dtype) {
  return {.n_layers = count32(c.n_kv_layers()),
          .n_heads = count32(c.n_heads),
          .n_kv_heads = count32(c.n_kv_heads),
          .head_dim = count32(c.head_dim),
          .kv_dtype = kv_dtype,
          .sliding_window = count32(c.sliding_window),
          .windowed = c.windowed,
          .turns_positions = turns_positions(c)};
}

}  // namespace mneme

// qwen3: llama, and each head's q and k are normed before RoPE.
//
//   x ── norm ── q, k, v ── norm of heads ── RoPE ── attention ── W_o ──(+)── norm ── SwiGLU ──(+)── x
//   └─────────────────────────────────────────────────────────────────────┘ └───────────────────┘
#include "src/model/architectures/architectures.h"

namespace mneme {

std::span<const Part> qwen3_parts() {
  using namespace parts;
  static constexpr Part kParts[] = {attention_norm, project, norm_heads, rotate, attend, ffn_norm, swiglu};
  return kParts;
}

}  // namespace mneme

// qwen3moe: qwen3 with a mixture of experts in place of SwiGLU.
//
//   x ── norm ── q, k, v ── norm of heads ── RoPE ── attention ── W_o ──(+)── norm ── router ── experts ──(+)── x
//   └─────────────────────────────────────────────────────────────────────┘ └──────────────────────────────┘
#include "src/model/architectures/architectures.h"

namespace mneme {

std::span<const Part> qwen3moe_parts() {
  using namespace parts;
  static constexpr Part kParts[] = {attention_norm, project, norm_heads, rotate, attend, ffn_norm, experts};
  return kParts;
}

}  // namespace mneme

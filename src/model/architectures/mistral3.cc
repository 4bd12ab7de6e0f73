// mistral3 (Ministral 3): llama, and queries grow with their position behind RoPE.
//
//   x ── norm ── q, k, v ── RoPE ── q scaled ── attention ── W_o ──(+)── norm ── SwiGLU ──(+)── x
//   └──────────────────────────────────────────────────────────────┘ └───────────────────┘
#include "src/model/architectures/architectures.h"

namespace mneme {

std::span<const Part> mistral3_parts() {
  using namespace parts;
  static constexpr Part kParts[] = {attention_norm, project, rotate, scale_queries, attend, ffn_norm, swiglu};
  return kParts;
}

}  // namespace mneme

// llama, mistral (a window in `attend`), qwen2 (biases in `project`).
//
//   x ── norm ── q, k, v ── RoPE ── attention ── W_o ──(+)── norm ── SwiGLU ──(+)── x
//   └──────────────────────────────────────────────────┘ └───────────────────┘
#include "src/model/architectures/architectures.h"

namespace mneme {

std::span<const Part> llama_parts() {
  using namespace parts;
  static constexpr Part kParts[] = {attention_norm, project, rotate, attend, ffn_norm, swiglu};
  return kParts;
}

}  // namespace mneme

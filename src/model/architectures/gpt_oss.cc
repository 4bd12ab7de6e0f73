// gpt-oss: llama with biases in `project`, `attend`, the router and its experts; windows in every second layer and
// attention sinks in `attend`; a mixture of experts whose gates are cut off.
//
//   x ── norm ── q, k, v ── RoPE ── attention, sinks ── W_o ──(+)── norm ── router ── experts ──(+)── x
//   └─────────────────────────────────────────────────────────┘ └──────────────────────────────┘
#include "src/model/architectures/architectures.h"

namespace mneme {

std::span<const Part> gpt_oss_parts() {
  using namespace parts;
  static constexpr Part kParts[] = {attention_norm, project, rotate, attend, ffn_norm, experts};
  return kParts;
}

}  // namespace mneme

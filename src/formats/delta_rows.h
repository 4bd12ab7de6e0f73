// Orders of the rows of Gated DeltaNet's tensors. Files differ in them, and kernels know DeltaConfig::tiled alone.
//
// qwen3_next's files fuse by key head: in_proj_qkvz has for each its rows of q, of k, of its value heads' v, of their z;
// in_proj_ba (GGUF's ssm_ba) those of beta, then of alpha.
#pragma once

#include <cstdint>
#include <vector>

#include "src/formats/model_config.h"

namespace mneme {

// Row i of the part is row rows[i] of the fused tensor.
struct DeltaRows {
  std::vector<std::int64_t> qkv;          // [channels]: all q, all k, all v
  std::vector<std::int64_t> z;            // [n_v_heads d_v]
  std::vector<std::int64_t> beta, alpha;  // [n_v_heads]
};
DeltaRows rows_by_key_head(const DeltaConfig& config);

// Value head i of a tiled model is value head order[i] of the same model by key heads.
std::vector<std::int64_t> tiled_order(const DeltaConfig& config);

}  // namespace mneme

// The weights that a model of a configuration has: our names (GGUF's), Hugging Face's, and shapes.
//
//   token_embd.weight          model.embed_tokens.weight                        [vocab, hidden]
//   blk.N.attn_norm.weight     model.layers.N.input_layernorm.weight            [hidden]
//   blk.N.attn_q.weight        model.layers.N.self_attn.q_proj.weight           [n_heads head_dim, hidden]       .bias:
//   qkv_bias blk.N.attn_k.weight        model.layers.N.self_attn.k_proj.weight           [n_kv_heads head_dim, hidden]
//   .bias: qkv_bias blk.N.attn_v.weight        model.layers.N.self_attn.v_proj.weight           [n_kv_heads head_dim,
//   hidden]    .bias: qkv_bias blk.N.attn_q_norm.weight   model.layers.N.self_attn.q_norm.weight           [head_dim]
//   qk_norm blk.N.attn_k_norm.weight   model.layers.N.self_attn.k_norm.weight           [head_dim] qk_norm
//   blk.N.attn_output.weight   model.layers.N.self_attn.o_proj.weight           [hidden, n_heads head_dim]
//   blk.N.ffn_norm.weight      model.layers.N.post_attention_layernorm.weight   [hidden]
//   blk.N.ffn_gate.weight      model.layers.N.mlp.gate_proj.weight              [ffn, hidden]
//   blk.N.ffn_up.weight        model.layers.N.mlp.up_proj.weight                [ffn, hidden]
//   blk.N.ffn_down.weight      model.layers.N.mlp.down_proj.weight              [hidden, ffn]
//   output_norm.weight         model.norm.weight                                [hidden]
//   output.weight              lm_head.weight                                   [vocab, hidden]                  not if
//   tied
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/function_ref.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/model_config.h"

namespace mneme {

enum class WeightRole : std::uint8_t { kOther, kQuery, kKey };  // rows of q and k depend on RopePairs

struct WeightSpec {
  std::string name, hf_name;
  std::int64_t n_out = 0;
  std::int64_t n_in = 0;  // 0: a vector [n_out]
  WeightRole role = WeightRole::kOther;
};

// Calls fn once for each weight, in the table's order.
void for_each_weight(const ModelConfig& config, FunctionRef<void(const WeightSpec&)> fn);

// All weights are there in their shapes, and nothing is there that the model would not use.
//
// Errors  kFormat: missing or of another shape; kUnsupported: unknown, or a vector in a quantised type (named)
void check_weights(const ModelConfig& config, const Checkpoint& checkpoint, std::string_view file);

}  // namespace mneme

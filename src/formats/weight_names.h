// Weights of a model configuration: GGUF's name (ours), Hugging Face's name, shape, and when present.
//
//   token_embd.weight         model.embed_tokens.weight                        [vocab, hidden]
//   blk.N.attn_norm.weight    model.layers.N.input_layernorm.weight            [hidden]
//   blk.N.attn_q.weight       model.layers.N.self_attn.q_proj.weight           [n_heads head_dim, hidden]
//   blk.N.attn_k.weight       model.layers.N.self_attn.k_proj.weight           [n_kv_heads head_dim, hidden]
//   blk.N.attn_v.weight       model.layers.N.self_attn.v_proj.weight           [n_kv_heads head_dim, hidden]
//   blk.N.attn_{q,k,v}.bias   model.layers.N.self_attn.{q,k,v}_proj.bias       [n_out of each]            qkv_bias
//   blk.N.attn_q_norm.weight  model.layers.N.self_attn.q_norm.weight           [head_dim]                 qk_norm
//   blk.N.attn_k_norm.weight  model.layers.N.self_attn.k_norm.weight           [head_dim]                 qk_norm
//   blk.N.attn_output.weight  model.layers.N.self_attn.o_proj.weight           [hidden, n_heads head_dim]
//   blk.N.ffn_norm.weight     model.layers.N.post_attention_layernorm.weight   [hidden]
//   blk.N.ffn_gate.weight     model.layers.N.mlp.gate_proj.weight              [ffn, hidden]              dense
//   blk.N.ffn_up.weight       model.layers.N.mlp.up_proj.weight                [ffn, hidden]              dense
//   blk.N.ffn_down.weight     model.layers.N.mlp.down_proj.weight              [hidden, ffn]              dense
//   blk.N.ffn_gate_inp.weight model.layers.N.mlp.gate.weight                   [experts, hidden]          experts
//   blk.N.ffn_gate_exps.weight model.layers.N.mlp.experts.E.gate_proj.weight   [experts, ffn, hidden]     experts
//   blk.N.ffn_up_exps.weight  model.layers.N.mlp.experts.E.up_proj.weight      [experts, ffn, hidden]     experts
//   blk.N.ffn_down_exps.weight model.layers.N.mlp.experts.E.down_proj.weight   [experts, hidden, ffn]     experts
//   output_norm.weight        model.norm.weight                                [hidden]
//   output.weight             lm_head.weight                                   [vocab, hidden]            untied only
//
// A stack of experts is one tensor of three dimensions, or one matrix an expert, blk.N.ffn_gate.E.weight.
//
// Families (family.h) name norms and more of their own. Norms behind attention and the feed-forward layer are
// blk.N.post_attention_norm.weight and blk.N.post_ffw_norm.weight; olmo2's q_norm and k_norm are [n_heads head_dim] and
// [n_kv_heads head_dim].
//
// gpt-oss has post_attention_norm for ffn_norm, and beside these
//
//   blk.N.attn_output.bias    model.layers.N.self_attn.o_proj.bias             [hidden]
//   blk.N.attn_sinks.weight   model.layers.N.self_attn.sinks                   [n_heads]
//   blk.N.ffn_gate_inp.bias   model.layers.N.mlp.router.bias                   [experts]
//   blk.N.ffn_gate_exps.bias  model.layers.N.mlp.experts.gate_up_proj_bias     [experts, ffn]
//   blk.N.ffn_up_exps.bias    the same                                         [experts, ffn]
//   blk.N.ffn_down_exps.bias  model.layers.N.mlp.experts.down_proj_bias        [experts, hidden]
//
// and its folders stack experts themselves, with rows of gate and up in turns (safetensors/fused_experts.h).
//
// qwen3_5 and qwen3_next have attn_q of [2 n_heads head_dim, hidden], each head's rows of q before those of its gate, and
//
//   blk.N.attn_qkv.weight     model.layers.N.linear_attn.in_proj_qkv.weight    [channels, hidden]         has_state
//   blk.N.attn_gate.weight    model.layers.N.linear_attn.in_proj_z.weight      [n_v_heads d_v, hidden]    has_state
//   blk.N.ssm_beta.weight     model.layers.N.linear_attn.in_proj_b.weight      [n_v_heads, hidden]        has_state
//   blk.N.ssm_alpha.weight    model.layers.N.linear_attn.in_proj_a.weight      [n_v_heads, hidden]        has_state
//   blk.N.ssm_ba.weight       model.layers.N.linear_attn.in_proj_ba.weight     [2 n_v_heads, hidden]      qwen3_next
//   blk.N.ssm_conv1d.weight   model.layers.N.linear_attn.conv1d.weight         [channels, taps]           has_state
//   blk.N.ssm_a               model.layers.N.linear_attn.A_log, -exp() of it   [n_v_heads]                has_state
//   blk.N.ssm_dt.bias         model.layers.N.linear_attn.dt_bias               [n_v_heads]                has_state
//   blk.N.ssm_norm.weight     model.layers.N.linear_attn.norm.weight           [d_v]                      has_state
//   blk.N.ssm_out.weight      model.layers.N.linear_attn.out_proj.weight       [hidden, n_v_heads d_v]    has_state
//   blk.N.ffn_X_shexp.weight  model.layers.N.mlp.shared_expert.X_proj.weight   as ffn_X                   shared
//   blk.N.ffn_gate_inp_shexp.weight model.layers.N.mlp.shared_expert_gate.weight [hidden]                 shared
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/function_ref.h"
#include "src/formats/checkpoint.h"
#include "src/formats/model_config.h"

namespace mneme {

// Rows of q and k depend on RopePairs; routers and the biases of experts stay in f32.
enum class WeightRole : std::uint8_t { kOther, kQuery, kKey, kExact };

// Rows of a tensor of a folder that are a stack's: all, every second one, or those of one half
// (of stacks whose rows are outputs: kAllOutputs, ...). kQkv and kZ: those of in_proj_qkvz (delta_rows.h).
enum class FusedSplit : std::uint8_t {
  kNone,
  kAll,
  kEven,
  kOdd,
  kFirstHalf,
  kSecondHalf,
  kAllOutputs,
  kFirstOutputs,
  kSecondOutputs,
  kQkv,
  kZ
};

// What makes GGUF's values of a folder's: as they are, plus 1, -exp(). kSqueeze: without a dimension of 1.
enum class WeightChange : std::uint8_t { kNone, kAddOne, kMinusExp, kSqueeze };
// What follows the order of value heads (DeltaConfig::tiled): nothing; rows; those behind q and k; columns.
enum class ValueHeads : std::uint8_t { kNone, kRows, kLastRows, kColumns };

struct WeightSpec {
  std::string name, hf_name;
  std::int64_t n_out = 0;
  std::int64_t n_in = 0;  // 0: a vector [n_out]
  WeightRole role = WeightRole::kOther;
  std::int64_t n_experts = 0;            // of a stack [n_experts, n_out, n_in]; 0: not one
  FusedSplit fused = FusedSplit::kNone;  // where folders stack experts: the rows of hf_name that are these
  std::string hf_expert = {};  // of kAllOutputs, ...: the name with '*' in folders that have experts one by one
  WeightChange change = WeightChange::kNone;
  ValueHeads heads = ValueHeads::kNone;

  // The matrix of one expert.
  WeightSpec expert(std::int64_t e) const;
};

// The matrix of expert e of a stack, whichever way the checkpoint has it; `find` returns a tensor by name, or null.
//
// Errors  kFormat: missing, or another shape
using FindWeight = FunctionRef<const CheckpointTensor*(const std::string& name)>;
CheckpointTensor expert_of(FindWeight find, const WeightSpec& stack, std::int64_t e);

// Names of a layer's norms, behind "blk.N." and before ".weight"; empty: it has none there.
struct NormNames {
  std::string_view attn, attn_behind, ffn, ffn_behind;
};
NormNames norm_names(const ModelConfig& config);

// Whether a tensor is of a block behind the layers: qwen3_5's files have those that draft tokens (MTP), which are not run.
bool is_of_draft(const ModelConfig& config, std::string_view name);

// Adds a tensor to `to`: one that fuses several as its parts, views of its rows. A file may have, whatever its
// architecture, blk.N.attn_qkv for q, k and v (weight, bias), and blk.N.ffn_up for gate and up, twice as high.
void add_split(const ModelConfig& config, CheckpointTensor tensor, std::vector<CheckpointTensor>& to);
// The same of a folder's names: parts of self_attn.qkv_proj and of mlp.gate_up_proj with their first row and number of
// rows; none: not fused.
struct FusedPart {
  std::string name;
  std::int64_t first = 0, n = 0;
};
std::vector<FusedPart> parts_of_fused(const ModelConfig& config, std::string_view hf_name);

// Calls fn once per weight, in the table's order.
void for_each_weight(const ModelConfig& config, FunctionRef<void(const WeightSpec&)> fn);

// Checks that all weights are present with their shapes, and that there are no others.
//
// Errors  kFormat: missing, or another shape; kUnsupported: unknown, or a vector in a quantised type (named)
void check_weights(const ModelConfig& config, const Checkpoint& checkpoint, std::string_view file);

}  // namespace mneme

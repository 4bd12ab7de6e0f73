#include "src/formats/weight_names.h"

#include <fmt/format.h>

#include <unordered_map>

#include "src/base/error.h"

namespace mneme {
namespace {

void for_each_weight_of_layer(const ModelConfig& c, std::int64_t layer, FunctionRef<void(const WeightSpec&)> fn) {
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  const auto weight = [&](const char* ours, const char* theirs, std::int64_t n_out, std::int64_t n_in,
                          WeightRole role = WeightRole::kOther) {
    fn({fmt::format("blk.{}.{}", layer, ours), fmt::format("model.layers.{}.{}", layer, theirs), n_out, n_in, role});
  };
  weight("attn_norm.weight", "input_layernorm.weight", c.hidden, 0);
  weight("attn_q.weight", "self_attn.q_proj.weight", q, c.hidden, WeightRole::kQuery);
  weight("attn_k.weight", "self_attn.k_proj.weight", kv, c.hidden, WeightRole::kKey);
  weight("attn_v.weight", "self_attn.v_proj.weight", kv, c.hidden);
  if (c.qkv_bias) {
    weight("attn_q.bias", "self_attn.q_proj.bias", q, 0, WeightRole::kQuery);
    weight("attn_k.bias", "self_attn.k_proj.bias", kv, 0, WeightRole::kKey);
    weight("attn_v.bias", "self_attn.v_proj.bias", kv, 0);
  }
  if (c.qk_norm) {
    weight("attn_q_norm.weight", "self_attn.q_norm.weight", c.head_dim, 0);
    weight("attn_k_norm.weight", "self_attn.k_norm.weight", c.head_dim, 0);
  }
  weight("attn_output.weight", "self_attn.o_proj.weight", c.hidden, q);
  weight("ffn_norm.weight", "post_attention_layernorm.weight", c.hidden, 0);
  weight("ffn_gate.weight", "mlp.gate_proj.weight", c.ffn, c.hidden);
  weight("ffn_up.weight", "mlp.up_proj.weight", c.ffn, c.hidden);
  weight("ffn_down.weight", "mlp.down_proj.weight", c.hidden, c.ffn);
}

}  // namespace

void for_each_weight(const ModelConfig& c, FunctionRef<void(const WeightSpec&)> fn) {
  fn({"token_embd.weight", "model.embed_tokens.weight", c.vocab, c.hidden});
  for (std::int64_t layer = 0; layer < c.n_layers; ++layer) for_each_weight_of_layer(c, layer, fn);
  fn({"output_norm.weight", "model.norm.weight", c.hidden, 0});
  if (!c.tied_embeddings) fn({"output.weight", "lm_head.weight", c.vocab, c.hidden});
}

void check_weights(const ModelConfig& config, const Checkpoint& checkpoint, std::string_view file) {
  std::unordered_map<std::string_view, const CheckpointTensor*> unused;
  for (const CheckpointTensor& t : checkpoint.tensors()) unused.emplace(t.name, &t);
  for_each_weight(config, [&](const WeightSpec& w) {
    const auto it = unused.find(w.name);
    if (it == unused.end()) fail(ErrorKind::kFormat, "{}: tensor '{}' is missing", file, w.name);
    const CheckpointTensor* t = it->second;
    unused.erase(it);
    const bool fits = w.n_in == 0 ? t->view.rank() == 1 && t->view.dim(0) == w.n_out
                                  : t->view.rank() == 2 && t->view.dim(0) == w.n_out && t->view.dim(1) == w.n_in;
    if (!fits)
      fail(ErrorKind::kFormat, "{}: tensor '{}': expected {}, found {}", file, w.name,
           w.n_in == 0 ? fmt::format("[{}]", w.n_out) : fmt::format("[{}, {}]", w.n_out, w.n_in), t->view.to_string());
    if (w.n_in == 0 && is_quantised(t->view.dtype()))
      fail(ErrorKind::kUnsupported, "{}: tensor '{}' is a vector in {}; expected f32, f16 or bf16", file, w.name,
           dtype_name(t->view.dtype()));
  });
  if (!unused.empty())
    fail(ErrorKind::kUnsupported, "{}: tensor '{}' is not part of a {} model as this build knows it", file,
         unused.begin()->first, architecture_name(config.architecture));
}

}  // namespace mneme

#include "src/formats/weight_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "src/base/error.h"
#include "src/formats/family.h"

namespace mneme {
namespace {

// gpt-oss: stacks of the folder's own, gate and up in one.
void for_each_fused_stack(const ModelConfig& c, std::int64_t layer, FunctionRef<void(const WeightSpec&)> fn) {
  const std::int64_t n = c.experts.n, ffn = c.experts.ffn;
  const std::string ours = fmt::format("blk.{}.", layer), theirs = fmt::format("model.layers.{}.mlp.", layer);
  const auto stack = [&](const char* name, const char* hf, std::int64_t n_out, std::int64_t n_in, FusedSplit rows) {
    const std::string hf_name = theirs + "experts." + hf;
    fn({ours + name + ".weight", hf_name, n_out, n_in, WeightRole::kOther, n, rows});
    fn({ours + name + ".bias", hf_name + "_bias", n, n_out, WeightRole::kExact, 0, rows});
  };
  fn({ours + "ffn_gate_inp.weight", theirs + "router.weight", n, c.hidden, WeightRole::kExact});
  fn({ours + "ffn_gate_inp.bias", theirs + "router.bias", n, 0});
  stack("ffn_gate_exps", "gate_up_proj", ffn, c.hidden, FusedSplit::kEven);
  stack("ffn_up_exps", "gate_up_proj", ffn, c.hidden, FusedSplit::kOdd);
  stack("ffn_down_exps", "down_proj", c.hidden, ffn, FusedSplit::kAll);
}

// qwen3_5_moe: stacks in the folder, or experts one by one; and the expert that all rows have.
void for_each_row_stack(const ModelConfig& c, std::int64_t layer, FunctionRef<void(const WeightSpec&)> fn) {
  const std::string ours = fmt::format("blk.{}.", layer), theirs = fmt::format("model.layers.{}.mlp.", layer);
  const std::int64_t ffn = c.experts.ffn, shared = c.experts.shared;
  const auto stack = [&](const char* name, const char* hf, const char* one, std::int64_t n_out, std::int64_t n_in,
                         FusedSplit rows) {
    fn({.name = ours + name,
        .hf_name = theirs + "experts." + hf,
        .n_out = n_out,
        .n_in = n_in,
        .n_experts = c.experts.n,
        .fused = rows,
        .hf_expert = theirs + "experts.*." + one});
  };
  stack("ffn_gate_exps.weight", "gate_up_proj", "gate_proj.weight", ffn, c.hidden, FusedSplit::kFirstOutputs);
  stack("ffn_up_exps.weight", "gate_up_proj", "up_proj.weight", ffn, c.hidden, FusedSplit::kSecondOutputs);
  stack("ffn_down_exps.weight", "down_proj", "down_proj.weight", c.hidden, ffn, FusedSplit::kAllOutputs);
  if (shared == 0) return;
  fn({ours + "ffn_gate_shexp.weight", theirs + "shared_expert.gate_proj.weight", shared, c.hidden});
  fn({ours + "ffn_up_shexp.weight", theirs + "shared_expert.up_proj.weight", shared, c.hidden});
  fn({ours + "ffn_down_shexp.weight", theirs + "shared_expert.down_proj.weight", c.hidden, shared});
  fn({.name = ours + "ffn_gate_inp_shexp.weight",
      .hf_name = theirs + "shared_expert_gate.weight",
      .n_out = c.hidden,
      .change = WeightChange::kSqueeze});
}

// Gated DeltaNet, between the layer's norms.
void for_each_delta_weight(const ModelConfig& c, std::int64_t layer, FunctionRef<void(const WeightSpec&)> fn) {
  const DeltaConfig& d = c.delta;
  const bool fused = family_of(c.architecture).fused_by_key_head;
  const auto weight = [&](WeightSpec spec) {
    spec.name = fmt::format("blk.{}.{}", layer, spec.name);
    spec.hf_name = fmt::format("model.layers.{}.linear_attn.{}", layer, spec.hf_name);
    fn(spec);
  };
  using enum ValueHeads;
  weight({.name = "attn_qkv.weight",
          .hf_name = fused ? "in_proj_qkvz.weight" : "in_proj_qkv.weight",
          .n_out = d.channels(),
          .n_in = c.hidden,
          .fused = fused ? FusedSplit::kQkv : FusedSplit::kNone,
          .heads = kLastRows});
  weight({.name = "attn_gate.weight",
          .hf_name = fused ? "in_proj_qkvz.weight" : "in_proj_z.weight",
          .n_out = d.value_width(),
          .n_in = c.hidden,
          .fused = fused ? FusedSplit::kZ : FusedSplit::kNone,
          .heads = kRows});
  if (fused)
    weight({.name = "ssm_ba.weight", .hf_name = "in_proj_ba.weight", .n_out = 2 * d.n_v_heads, .n_in = c.hidden});
  if (!fused) {
    weight({.name = "ssm_beta.weight",
            .hf_name = "in_proj_b.weight",
            .n_out = d.n_v_heads,
            .n_in = c.hidden,
            .heads = kRows});
    weight({.name = "ssm_alpha.weight",
            .hf_name = "in_proj_a.weight",
            .n_out = d.n_v_heads,
            .n_in = c.hidden,
            .heads = kRows});
  }
  weight({.name = "ssm_conv1d.weight",
          .hf_name = "conv1d.weight",
          .n_out = d.channels(),
          .n_in = d.taps,
          .role = WeightRole::kExact,
          .change = WeightChange::kSqueeze,
          .heads = kLastRows});
  weight(
      {.name = "ssm_a", .hf_name = "A_log", .n_out = d.n_v_heads, .change = WeightChange::kMinusExp, .heads = kRows});
  weight({.name = "ssm_dt.bias", .hf_name = "dt_bias", .n_out = d.n_v_heads, .heads = kRows});
  weight({.name = "ssm_norm.weight", .hf_name = "norm.weight", .n_out = d.d_v});
  weight({.name = "ssm_out.weight",
          .hf_name = "out_proj.weight",
          .n_out = c.hidden,
          .n_in = d.value_width(),
          .heads = kColumns});
}

void for_each_expert_stack(const ModelConfig& c, std::int64_t layer, FunctionRef<void(const WeightSpec&)> fn) {
  if (family_of(c.architecture).experts == ExpertNames::kFused) return for_each_fused_stack(c, layer, fn);
  const std::int64_t n = c.experts.n, ffn = c.experts.ffn;
  const auto name = [&](const char* ours) { return fmt::format("blk.{}.{}", layer, ours); };
  const auto stack = [&](const char* ours, const char* theirs, std::int64_t n_out, std::int64_t n_in) {
    fn({name(ours), fmt::format("model.layers.{}.mlp.experts.*.{}", layer, theirs), n_out, n_in, WeightRole::kOther,
        n});
  };
  fn({name("ffn_gate_inp.weight"), fmt::format("model.layers.{}.mlp.gate.weight", layer), n, c.hidden,
      WeightRole::kExact});
  if (family_of(c.architecture).experts == ExpertNames::kStackedRows) return for_each_row_stack(c, layer, fn);
  if (family_of(c.architecture).experts == ExpertNames::kStacked) {
    const auto half = [&](const char* ours, const char* theirs, std::int64_t n_out, std::int64_t n_in,
                          FusedSplit rows) {
      fn({name(ours), fmt::format("model.layers.{}.mlp.experts.{}", layer, theirs), n_out, n_in, WeightRole::kOther, n,
          rows});
    };
    half("ffn_gate_exps.weight", "gate_up_proj", ffn, c.hidden, FusedSplit::kFirstHalf);
    half("ffn_up_exps.weight", "gate_up_proj", ffn, c.hidden, FusedSplit::kSecondHalf);
    return half("ffn_down_exps.weight", "down_proj", c.hidden, ffn, FusedSplit::kAll);
  }
  stack("ffn_gate_exps.weight", "gate_proj.weight", ffn, c.hidden);
  stack("ffn_up_exps.weight", "up_proj.weight", ffn, c.hidden);
  stack("ffn_down_exps.weight", "down_proj.weight", c.hidden, ffn);
}

void for_each_weight_of_layer(const ModelConfig& c, std::int64_t layer, FunctionRef<void(const WeightSpec&)> fn) {
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim, gate = c.output_gate ? q : 0;
  const auto weight = [&](const char* ours, const char* theirs, std::int64_t n_out, std::int64_t n_in,
                          WeightRole role = WeightRole::kOther) {
    fn({fmt::format("blk.{}.{}", layer, ours), fmt::format("model.layers.{}.{}", layer, theirs), n_out, n_in, role});
  };
  const Family& family = family_of(c.architecture);
  const NormNames norms = norm_names(c);
  const auto norm = [&](std::string_view ours, std::string_view theirs, std::int64_t n) {
    if (ours.empty()) return;
    fn({.name = fmt::format("blk.{}.{}.weight", layer, ours),
        .hf_name = fmt::format("model.layers.{}.{}.weight", layer, theirs),
        .n_out = n,
        .change = family.norms_from_one ? WeightChange::kAddOne : WeightChange::kNone});
  };
  const auto feed_forward = [&] {
    norm(norms.ffn, family.norms.ffn, c.hidden);
    norm(norms.ffn_behind, family.norms.ffn_behind, c.hidden);
    if (c.experts.n > 0) return for_each_expert_stack(c, layer, fn);
    weight("ffn_gate.weight", "mlp.gate_proj.weight", c.ffn, c.hidden);
    weight("ffn_up.weight", "mlp.up_proj.weight", c.ffn, c.hidden);
    weight("ffn_down.weight", "mlp.down_proj.weight", c.hidden, c.ffn);
  };
  norm(norms.attn, family.norms.attn, c.hidden);
  if (c.has_state(layer)) {
    for_each_delta_weight(c, layer, fn);
    return feed_forward();
  }
  weight("attn_q.weight", "self_attn.q_proj.weight", q + gate, c.hidden, WeightRole::kQuery);
  weight("attn_k.weight", "self_attn.k_proj.weight", kv, c.hidden, WeightRole::kKey);
  weight("attn_v.weight", "self_attn.v_proj.weight", kv, c.hidden);
  if (c.qkv_bias) {
    weight("attn_q.bias", "self_attn.q_proj.bias", q, 0, WeightRole::kQuery);
    weight("attn_k.bias", "self_attn.k_proj.bias", kv, 0, WeightRole::kKey);
    weight("attn_v.bias", "self_attn.v_proj.bias", kv, 0);
  }
  if (c.qk_norm) {
    norm("attn_q_norm", fmt::format("self_attn.{}", family.hf_q_norm), c.qk_norm_all ? q : c.head_dim);
    norm("attn_k_norm", fmt::format("self_attn.{}", family.hf_k_norm), c.qk_norm_all ? kv : c.head_dim);
  }
  weight("attn_output.weight", "self_attn.o_proj.weight", c.hidden, q);
  if (c.o_bias) weight("attn_output.bias", "self_attn.o_proj.bias", c.hidden, 0);
  if (c.sinks) weight("attn_sinks.weight", "self_attn.sinks", c.n_heads, 0);
  norm(norms.attn_behind, family.norms.attn_behind, c.hidden);
  feed_forward();
}

bool has_shape(const ConstTensorView& v, const WeightSpec& w) {
  if (w.n_in == 0) return v.rank() == 1 && v.dim(0) == w.n_out;
  if (w.n_experts > 0) return v.rank() == 3 && v.dim(0) == w.n_experts && v.dim(1) == w.n_out && v.dim(2) == w.n_in;
  return v.rank() == 2 && v.dim(0) == w.n_out && v.dim(1) == w.n_in;
}

std::string shape_of(const WeightSpec& w) {
  if (w.n_in == 0) return fmt::format("[{}]", w.n_out);
  if (w.n_experts > 0) return fmt::format("[{}, {}, {}]", w.n_experts, w.n_out, w.n_in);
  return fmt::format("[{}, {}]", w.n_out, w.n_in);
}

using TensorsByName = std::unordered_map<std::string_view, const CheckpointTensor*>;

// Takes a weight out of `unused`.
void check_weight(const WeightSpec& w, TensorsByName& unused, std::string_view file) {
  const auto it = unused.find(w.name);
  if (it == unused.end() && w.n_experts > 0 && unused.contains(w.expert(0).name)) {
    for (std::int64_t e = 0; e < w.n_experts; ++e) check_weight(w.expert(e), unused, file);
    return;
  }
  if (it == unused.end()) fail(ErrorKind::kFormat, "{}: tensor '{}' is missing", file, w.name);
  const ConstTensorView& v = it->second->view;
  unused.erase(it);
  if (!has_shape(v, w))
    fail(ErrorKind::kFormat, "{}: tensor '{}': expected {}, found {}", file, w.name, shape_of(w), v.to_string());
  if (w.n_in == 0 && is_quantised(v.dtype()))
    fail(ErrorKind::kUnsupported, "{}: tensor '{}' is a vector in {}; expected f32, f16 or bf16", file, w.name,
         dtype_name(v.dtype()));
}

// `text` with the first `mark` replaced.
std::string replaced(std::string text, std::string_view mark, const std::string& by) {
  const std::size_t at = text.find(mark);
  return at == std::string::npos ? text : text.replace(at, mark.size(), by);
}

}  // namespace

WeightSpec WeightSpec::expert(std::int64_t e) const {
  const std::string& theirs = hf_expert.empty() ? hf_name : hf_expert;
  return {replaced(name, "_exps", fmt::format(".{}", e)), replaced(theirs, "*", std::to_string(e)), n_out, n_in, role};
}

CheckpointTensor expert_of(FindWeight find, const WeightSpec& stack, std::int64_t e) {
  const CheckpointTensor* all = find(stack.name);
  const WeightSpec spec = all == nullptr ? stack.expert(e) : stack;
  const CheckpointTensor* t = all == nullptr ? find(spec.name) : all;
  if (t == nullptr) fail(ErrorKind::kFormat, "tensor '{}' is missing, and so is '{}'", stack.name, spec.name);
  const ConstTensorView& v = t->view;
  if (!has_shape(v, spec))
    fail(ErrorKind::kFormat, "tensor '{}': expected {}, found {}", spec.name, shape_of(spec), v.to_string());
  if (all == nullptr) return *t;
  const std::byte* first = v.data() + (e * stack.n_out) * row_bytes(v.dtype(), stack.n_in);
  return {stack.expert(e).name, ConstTensorView(first, v.dtype(), {stack.n_out, stack.n_in})};
}

NormNames norm_names(const ModelConfig& config) {
  NormNames names;
  if (config.norms != NormOrder::kBehind)
    names.attn = "attn_norm", names.ffn = family_of(config.architecture).gguf_ffn_norm;
  if (config.norms != NormOrder::kBefore) names.attn_behind = "post_attention_norm", names.ffn_behind = "post_ffw_norm";
  return names;
}

namespace {

// Rows of q, k and v, or of gate and up.
std::vector<FusedPart> rows_of(const ModelConfig& c, std::initializer_list<const char*> names, std::string_view before,
                               std::string_view behind) {
  const std::int64_t q = c.n_heads * c.head_dim * (c.output_gate ? 2 : 1), kv = c.n_kv_heads * c.head_dim;
  std::vector<FusedPart> parts;
  std::int64_t first = 0;
  for (const char* name : names) {
    const std::int64_t n = names.size() == 2 ? c.ffn : parts.empty() ? q : kv;
    parts.push_back({fmt::format("{}{}{}", before, name, behind), first, n});
    first += n;
  }
  return parts;
}

}  // namespace

std::vector<FusedPart> parts_of_fused(const ModelConfig& c, std::string_view hf_name) {
  for (const std::string_view end : {".weight", ".bias"}) {
    if (!hf_name.ends_with(end)) continue;
    const std::string_view name = hf_name.substr(0, hf_name.size() - end.size());
    const auto before = [&](std::string_view last) { return name.substr(0, name.size() - last.size()); };
    if (name.ends_with(".self_attn.qkv_proj"))
      return rows_of(c, {"q_proj", "k_proj", "v_proj"}, before("qkv_proj"), end);
    if (name.ends_with(".mlp.gate_up_proj")) return rows_of(c, {"gate_proj", "up_proj"}, before("gate_up_proj"), end);
  }
  return {};
}

namespace {

// The layer of a tensor, by its name; -1: of none.
std::int64_t layer_of(std::string_view name) {
  constexpr std::string_view kBefore = "blk.";
  std::int64_t layer = -1;
  if (name.starts_with(kBefore)) std::from_chars(name.data() + kBefore.size(), name.data() + name.size(), layer);
  return layer;
}

// Gate and up of all experts in one stack, as matrices of one expert each.
bool add_split_stack(const ModelConfig& c, const CheckpointTensor& tensor, std::vector<CheckpointTensor>& to) {
  constexpr std::string_view kName = "ffn_gate_up_exps.weight";
  const ConstTensorView& v = tensor.view;
  const std::int64_t n = c.experts.n, ffn = c.experts.ffn;
  if (!tensor.name.ends_with(kName) || v.rank() != 3 || v.dim(0) != n || v.dim(1) != 2 * ffn) return false;
  const std::string before = tensor.name.substr(0, tensor.name.size() - kName.size());
  const std::size_t matrix = ffn * row_bytes(v.dtype(), v.dim(2));
  for (std::int64_t e = 0; e < n; ++e)
    for (int half = 0; half < 2; ++half)
      to.push_back({fmt::format("{}{}.{}.weight", before, half == 0 ? "ffn_gate" : "ffn_up", e),
                    ConstTensorView(v.data() + (2 * e + half) * matrix, v.dtype(), {ffn, v.dim(2)})});
  return true;
}

}  // namespace

bool is_of_draft(const ModelConfig& c, std::string_view name) {
  return family_of(c.architecture).delta && layer_of(name) >= c.n_layers;
}

void add_split(const ModelConfig& c, CheckpointTensor tensor, std::vector<CheckpointTensor>& to) {
  const ConstTensorView& v = tensor.view;
  if (add_split_stack(c, tensor, to)) return;
  const std::int64_t layer = layer_of(tensor.name);
  if (layer >= 0 && layer < c.n_layers && c.has_state(layer)) return to.push_back(std::move(tensor));
  const std::size_t dot = std::min(tensor.name.rfind('.'), tensor.name.size());
  const std::string_view name = std::string_view(tensor.name).substr(0, dot),
                         end = std::string_view(tensor.name).substr(dot);
  std::vector<FusedPart> parts;
  if (name.ends_with(".attn_qkv"))
    parts = rows_of(c, {"attn_q", "attn_k", "attn_v"}, name.substr(0, name.size() - 8), end);
  else if (name.ends_with(".ffn_up") && v.rank() == 2 && v.dim(0) == 2 * c.ffn)
    parts = rows_of(c, {"ffn_gate", "ffn_up"}, name.substr(0, name.size() - 6), end);
  const bool whole = parts.empty() || v.dim(0) != parts.back().first + parts.back().n || v.rank() > 2;
  if (whole) return to.push_back(std::move(tensor));
  for (const FusedPart& p : parts) {
    const std::byte* rows = v.data() + p.first * (v.rank() == 1 ? dtype_info(v.dtype()).bytes : v.stride_bytes());
    to.push_back({p.name, v.rank() == 1 ? ConstTensorView(rows, v.dtype(), {p.n})
                                        : ConstTensorView(rows, v.dtype(), {p.n, v.dim(1)})});
  }
}

void for_each_weight(const ModelConfig& c, FunctionRef<void(const WeightSpec&)> fn) {
  fn({"token_embd.weight", "model.embed_tokens.weight", c.vocab, c.hidden});
  for (std::int64_t layer = 0; layer < c.n_layers; ++layer) for_each_weight_of_layer(c, layer, fn);
  fn({.name = "output_norm.weight",
      .hf_name = "model.norm.weight",
      .n_out = c.hidden,
      .change = family_of(c.architecture).norms_from_one ? WeightChange::kAddOne : WeightChange::kNone});
  if (!c.tied_embeddings) fn({"output.weight", "lm_head.weight", c.vocab, c.hidden});
}

void check_weights(const ModelConfig& config, const Checkpoint& checkpoint, std::string_view file) {
  TensorsByName unused;
  for (const CheckpointTensor& t : checkpoint.tensors())
    if (!unused.emplace(t.name, &t).second)
      fail(ErrorKind::kFormat,
           "{}: tensor '{}' is there twice, on its own and as part of another: expected one of them", file, t.name);
  for_each_weight(config, [&](const WeightSpec& w) { check_weight(w, unused, file); });
  if (!unused.empty())
    fail(ErrorKind::kUnsupported, "{}: tensor '{}' is not part of a {} model as this build knows it", file,
         unused.begin()->first, architecture_name(config.architecture));
}

}  // namespace mneme

// Loads a model from a checkpoint: matrices stay views of the mapped file, vectors become f32.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/formats/delta_rows.h"
#include "src/formats/family.h"
#include "src/formats/model_plan.h"
#include "src/formats/weight_names.h"
#include "src/model/limits.h"
#include "src/model/model.h"

namespace mneme {

struct ModelLoader {
  const Checkpoint& checkpoint;
  Model& model;
  std::unordered_map<std::string_view, const CheckpointTensor*> by_name = {};

  const CheckpointTensor& require(const std::string& name, std::initializer_list<std::int64_t> shape) {
    const CheckpointTensor& tensor = checkpoint.require(name, shape);
    expect_weights(tensor);
    return tensor;
  }

  static void expect_weights(const CheckpointTensor& tensor) {
    const DType t = tensor.view.dtype();
    if (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16 && !is_quantised(t))
      fail(ErrorKind::kUnsupported, "tensor {} is {}; weights are f32, f16, bf16 or quantised", tensor.name,
           dtype_name(t));
  }

  // Where the first r of a head's D values rotate in halves (i, i + r/2), rows of q and k are put in an order in which
  // all pairs are (i, i + D/2), the last ones of frequency 0: kernels know no other. Both are in it, so dot products are
  // the same.
  std::int64_t row_of(std::int64_t at) const {
    const ModelConfig& c = model.config_;
    const std::int64_t d = c.head_dim, r = c.rope.rotary_dim, first = at / d * d, pair = at % (d / 2);
    const bool second = at % d >= d / 2;
    if (pair < r / 2) return first + pair + (second ? r / 2 : 0);
    return first + r + pair - r / 2 + (second ? (d - r) / 2 : 0);
  }
  bool reorders() const {
    const RopeConfig& r = model.config_.rope;
    return r.rotary_dim != 0 && r.rotary_dim != model.config_.head_dim && r.pairs == RopePairs::kHalves;
  }
  WeightMatrix rotated_matrix(const std::string& name, std::int64_t n_out, std::int64_t n_in) {
    const WeightMatrix as_stored = matrix(name, n_out, n_in);
    if (!reorders()) return as_stored;
    const ConstTensorView& v = as_stored.view();
    model.owned_.emplace_back(v.dtype(), std::initializer_list<std::int64_t>{n_out, n_in});
    const TensorView& rows = model.owned_.back();
    for (std::int64_t i = 0; i < n_out; ++i) std::copy_n(v.row(row_of(i)), v.stride_bytes(), rows.row(i));
    return WeightMatrix(rows, as_stored.columns());
  }
  std::span<const float> rotated_vector(const std::string& name, std::int64_t n) {
    const std::span<const float> as_stored = vector(name, n);
    if (!reorders()) return as_stored;
    float* out = model.owned_.back().as<float>();
    const std::vector<float> stored(out, out + n);
    for (std::int64_t i = 0; i < n; ++i) out[i] = stored[row_of(i)];
    return as_stored;
  }

  // The rows of a matrix, each row i of the file's row rows[i].
  WeightMatrix gathered(const std::string& name, std::int64_t n_stored, std::int64_t n_in,
                        std::span<const std::int64_t> rows) {
    const WeightMatrix as_stored = matrix(name, n_stored, n_in);
    const ConstTensorView& v = as_stored.view();
    model.owned_.emplace_back(v.dtype(), std::initializer_list<std::int64_t>{std::ssize(rows), n_in});
    const TensorView& to = model.owned_.back();
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy_n(v.row(rows[i]), v.stride_bytes(), to.row(static_cast<std::int64_t>(i)));
    return WeightMatrix(to, as_stored.columns());
  }

  // Queries and the gate of attention's output: a head's rows of one before its rows of the other.
  void add_gated_queries(const std::string& name, LayerWeights& w) {
    const ModelConfig& c = model.config_;
    const std::int64_t d = c.head_dim, width = c.n_heads * d;
    std::vector<std::int64_t> q(width), gate(width);
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t head = i / d * d;
      q[i] = head + (reorders() ? row_of(i) : i);
      gate[i] = head + d + i;
    }
    w.q = gathered(name, 2 * width, c.hidden, q);
    w.q_gate = gathered(name, 2 * width, c.hidden, gate);
  }

  void add_delta(const std::string& prefix, DeltaWeights& w) {
    const ModelConfig& c = model.config_;
    const DeltaConfig& d = c.delta;
    w.qkv = matrix(prefix + "attn_qkv.weight", d.channels(), c.hidden);
    w.z = matrix(prefix + "attn_gate.weight", d.value_width(), c.hidden);
    if (family_of(c.architecture).fused_by_key_head) {
      const DeltaRows rows = rows_by_key_head(d);
      w.beta = gathered(prefix + "ssm_ba.weight", 2 * d.n_v_heads, c.hidden, rows.beta);
      w.alpha = gathered(prefix + "ssm_ba.weight", 2 * d.n_v_heads, c.hidden, rows.alpha);
    } else {
      w.beta = matrix(prefix + "ssm_beta.weight", d.n_v_heads, c.hidden);
      w.alpha = matrix(prefix + "ssm_alpha.weight", d.n_v_heads, c.hidden);
    }
    w.out = matrix(prefix + "ssm_out.weight", c.hidden, d.value_width());
    const WeightMatrix conv = float_matrix(prefix + "ssm_conv1d.weight", d.channels(), d.taps);
    w.conv = std::span(conv.view().row_as<float>(0), d.channels() * d.taps);
    w.a = vector(prefix + "ssm_a", d.n_v_heads);
    w.dt = vector(prefix + "ssm_dt.bias", d.n_v_heads);
    w.norm = vector(prefix + "ssm_norm.weight", d.d_v);
  }

  void add_shared_expert(const std::string& prefix, LayerWeights& w) {
    const ModelConfig& c = model.config_;
    const std::int64_t ffn = c.experts.shared;
    if (ffn == 0) return;
    w.shared.gate = matrix(prefix + "ffn_gate_shexp.weight", ffn, c.hidden);
    w.shared.up = matrix(prefix + "ffn_up_shexp.weight", ffn, c.hidden);
    w.shared.down = matrix(prefix + "ffn_down_shexp.weight", c.hidden, ffn);
    const std::span<const float> gate = vector(prefix + "ffn_gate_inp_shexp.weight", c.hidden);
    w.shared_gate = WeightMatrix(view_of(gate.data(), {1, c.hidden}));
  }

  WeightMatrix matrix(const std::string& name, std::int64_t n_out, std::int64_t n_in) {
    const CheckpointTensor& tensor = require(name, {n_out, n_in});
    return WeightMatrix(tensor.view, tensor.columns);
  }

  std::span<const float> vector(const std::string& name, std::int64_t n) {
    const ConstTensorView& v = require(name, {n}).view;
    model.owned_.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{n});
    float* out = model.owned_.back().as<float>();
    const WeightMatrix aligned(ConstTensorView(v.data(), v.dtype(), {1, n}));
    dequantise_row(aligned.view(), 0, out);
    return std::span(out, n);
  }

  std::span<const float> output_norm() {
    const std::span<const float> weight = vector("output_norm.weight", model.config_.hidden);
    const double divisor = model_plan_of(model.config_).logit_divisor;
    if (divisor != 1.0)
      for (float& v : std::span(model.owned_.back().as<float>(), weight.size())) v = static_cast<float>(v / divisor);
    return weight;
  }

  LayerWeights layer(std::int64_t index) {
    const ModelConfig& c = model.config_;
    const std::string prefix = fmt::format("blk.{}.", index);
    const std::int64_t q_width = c.n_heads * c.head_dim, kv_width = c.n_kv_heads * c.head_dim;
    LayerWeights w;
    add_norms(prefix, w);
    if (c.has_state(index)) {
      add_delta(prefix, w.delta);
      return add_feed_forward(prefix, std::move(w));
    }
    if (c.output_gate)
      add_gated_queries(prefix + "attn_q.weight", w);
    else
      w.q = rotated_matrix(prefix + "attn_q.weight", q_width, c.hidden);
    w.k = rotated_matrix(prefix + "attn_k.weight", kv_width, c.hidden);
    w.v = matrix(prefix + "attn_v.weight", kv_width, c.hidden);
    w.o = matrix(prefix + "attn_output.weight", c.hidden, q_width);
    if (c.qkv_bias) {
      w.q_bias = rotated_vector(prefix + "attn_q.bias", q_width);
      w.k_bias = rotated_vector(prefix + "attn_k.bias", kv_width);
      w.v_bias = vector(prefix + "attn_v.bias", kv_width);
    }
    if (c.qk_norm) {
      w.q_norm = rotated_vector(prefix + "attn_q_norm.weight", c.qk_norm_all ? q_width : c.head_dim);
      w.k_norm = rotated_vector(prefix + "attn_k_norm.weight", c.qk_norm_all ? kv_width : c.head_dim);
    }
    if (c.o_bias) w.o_bias = vector(prefix + "attn_output.bias", c.hidden);
    if (c.sinks) w.sinks = vector(prefix + "attn_sinks.weight", c.n_heads);
    return add_feed_forward(prefix, std::move(w));
  }

  LayerWeights add_feed_forward(const std::string& prefix, LayerWeights w) {
    const ModelConfig& c = model.config_;
    if (c.experts.n > 0) {
      add_experts(prefix, w);
      add_shared_expert(prefix, w);
      return w;
    }
    w.gate = matrix(prefix + "ffn_gate.weight", c.ffn, c.hidden);
    w.up = matrix(prefix + "ffn_up.weight", c.ffn, c.hidden);
    w.down = matrix(prefix + "ffn_down.weight", c.hidden, c.ffn);
    return w;
  }

  void add_norms(const std::string& prefix, LayerWeights& w) {
    const NormNames names = norm_names(model.config_);
    const auto add = [&](std::string_view name, std::span<const float>& to) {
      if (!name.empty()) to = vector(fmt::format("{}{}.weight", prefix, name), model.config_.hidden);
    };
    add(names.attn, w.attn_norm);
    add(names.attn_behind, w.attn_out_norm);
    add(names.ffn, w.ffn_norm);
    add(names.ffn_behind, w.ffn_out_norm);
  }

  void add_experts(const std::string& prefix, LayerWeights& w) {
    const ModelConfig& c = model.config_;
    const std::int64_t n = c.experts.n, ffn = c.experts.ffn;
    w.router = float_matrix(prefix + "ffn_gate_inp.weight", n, c.hidden);
    const auto find = [this](const std::string& name) {
      const auto it = by_name.find(name);
      return it == by_name.end() ? nullptr : it->second;
    };
    const auto stack = [&](const char* name, std::int64_t n_out, std::int64_t n_in) {
      return WeightSpec{.name = prefix + name, .hf_name = {}, .n_out = n_out, .n_in = n_in, .n_experts = n};
    };
    const WeightSpec stacks[] = {stack("ffn_gate_exps.weight", ffn, c.hidden),
                                 stack("ffn_up_exps.weight", ffn, c.hidden),
                                 stack("ffn_down_exps.weight", c.hidden, ffn)};
    const auto has = [&](std::int64_t e) {
      return std::ranges::any_of(
          stacks, [&](const WeightSpec& s) { return find(s.name) != nullptr || find(s.expert(e).name) != nullptr; });
    };
    const auto matrix_of = [&](const WeightSpec& of, std::int64_t e) {
      const CheckpointTensor t = expert_of(find, of, e);
      expect_weights(t);
      return WeightMatrix(t.view, t.columns);
    };
    const WeightMatrix elsewhere(ConstTensorView(nullptr, DType::kF32, {0, c.hidden}));  // another rank has it
    w.experts.resize(n, {.gate = elsewhere, .up = elsewhere, .down = elsewhere});
    std::int64_t first = 0;  // of those here: one at least
    while (first + 1 < n && !has(first)) ++first;
    for (std::int64_t e = first; e < n; ++e) {
      if (e > first && !has(e)) continue;
      w.experts[e].gate = matrix_of(stacks[0], e);
      w.experts[e].up = matrix_of(stacks[1], e);
      w.experts[e].down = matrix_of(stacks[2], e);
    }
    if (c.experts.biases) add_expert_biases(prefix, w);
  }

  void add_expert_biases(const std::string& prefix, LayerWeights& w) {
    const ModelConfig& c = model.config_;
    w.router_bias = vector(prefix + "ffn_gate_inp.bias", c.experts.n);
    const auto add = [&](const char* name, std::int64_t width, std::span<const float> ExpertWeights::*bias) {
      const WeightMatrix all = float_matrix(prefix + name, c.experts.n, width);
      for (std::int64_t e = 0; e < c.experts.n; ++e)
        if (w.experts[e].gate.n_out() > 0) w.experts[e].*bias = std::span(all.view().row_as<float>(e), width);
    };
    add("ffn_gate_exps.bias", c.experts.ffn, &ExpertWeights::gate_bias);
    add("ffn_up_exps.bias", c.experts.ffn, &ExpertWeights::up_bias);
    add("ffn_down_exps.bias", c.hidden, &ExpertWeights::down_bias);
  }

  // In f32 whatever the file has: a router's rounding would send rows to other experts. Biases of experts, too.
  WeightMatrix float_matrix(const std::string& name, std::int64_t n_out, std::int64_t n_in) {
    const CheckpointTensor& t = require(name, {n_out, n_in});
    const WeightMatrix aligned(t.view);
    model.owned_.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{n_out, n_in});
    const TensorView& out = model.owned_.back();
    for (std::int64_t r = 0; r < n_out; ++r) dequantise_row(aligned.view(), r, out.row_as<float>(r));
    return WeightMatrix(out);
  }

  void load(const ModelOptions& options) {
    model.set_config(checkpoint.config(), options.context);
    for (const CheckpointTensor& t : checkpoint.tensors()) by_name.emplace(t.name, &t);
    model.absent_tokens_ = absent_tokens(checkpoint.tokenizer());
    const ModelConfig& c = model.config_;
    model.embedding_ = matrix("token_embd.weight", c.vocab, c.hidden);
    for (std::int64_t i = 0; i < c.n_layers; ++i) model.layers_.push_back(layer(i));
    model.output_norm_ = output_norm();
    model.head_ = c.tied_embeddings ? model.embedding_ : matrix("output.weight", c.vocab, c.hidden);
  }

  // Reads the mapped weights once, so that the disk is waited for here, with progress, and not in the first prompt.
  void touch(const CpuContext& context, const ProgressFn& progress) const {
    constexpr std::size_t kMemoryPage = 4096, kPiece = std::size_t{64} << 20;
    constexpr std::int64_t kMiB = 1 << 20;
    std::size_t total = 0, done = 0;
    for (const CheckpointTensor& t : checkpoint.tensors()) total += bytes_of(t);
    for (const CheckpointTensor& t : checkpoint.tensors()) {
      const std::size_t size = bytes_of(t);
      for (std::size_t begin = 0; begin < size; begin += kPiece) {
        const std::size_t piece = std::min(kPiece, size - begin);
        const std::byte* data = t.view.data() + begin;
        const std::int64_t pages = (piece + kMemoryPage - 1) / kMemoryPage;
        context.pool->parallel_for(pages, 256, [&](std::int64_t from, std::int64_t to, int) {
          for (std::int64_t p = from; p < to; ++p)
            static_cast<void>(*static_cast<const volatile std::byte*>(data + p * kMemoryPage));
        });
        done += piece;
        if (progress) progress("loading weights, MiB", done / kMiB, total / kMiB);
      }
    }
  }

  static std::size_t bytes_of(const CheckpointTensor& t) {
    return t.view.rank() == 1 ? t.view.stride_bytes() : t.view.dim(0) * t.view.stride_bytes();
  }
};

std::unique_ptr<Model> Model::load(std::unique_ptr<Checkpoint> checkpoint, const ModelOptions& options,
                                   const CpuContext& context, const ProgressFn& progress) {
  std::unique_ptr<Model> model(new Model);
  model->checkpoint_ = std::move(checkpoint);
  ModelLoader loader{*model->checkpoint_, *model};
  loader.load(options);
  loader.touch(context, progress);
  return model;
}

}  // namespace mneme

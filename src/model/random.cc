// A model of a given shape with random weights, for `mneme bench --shape`.
#include <algorithm>
#include <initializer_list>
#include <vector>

#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/model/limits.h"
#include "src/model/model.h"

namespace mneme {
namespace {

constexpr double kStandardDeviation = 0.02;
constexpr float kBias = 0.02f;  // of gpt-oss, where it has more of them than q, k and v

// Weights are drawn from this table of normals: four per 64-bit draw, so that billions of weights take seconds.
constexpr std::size_t kTable = 1 << 16;
using NormalTable = std::vector<float>;
constexpr std::int64_t kRowGrain = 16;

void fill_row(const NormalTable& table, std::uint64_t seed, std::uint64_t row, std::span<float> out) {
  Rng rng(seed, row << 20);  // rows have less than 4 << 20 weights
  for (std::size_t i = 0; i < out.size();) {
    std::uint64_t draw = rng.next();
    for (int j = 0; j < 4 && i < out.size(); ++j, draw >>= 16) out[i++] = table[draw % kTable];
  }
}

NormalTable make_table(std::uint64_t seed) {
  NormalTable table(kTable);
  Rng rng(seed);
  for (float& v : table) v = static_cast<float>(kStandardDeviation * rng.normal());
  return table;
}

// Makes tensors of random weights, in the order of the calls.
class RandomWeights {
 public:
  // Requires  `owned` and the context outlive it; tensors go to `owned`.
  RandomWeights(DType dtype, std::uint64_t seed, const CpuContext& context, std::vector<Tensor>& owned)
      : dtype_(dtype),
        seed_(seed),
        context_(context),
        owned_(owned),
        table_(make_table(seed)),
        scratch_(context.pool->size()) {}

  WeightMatrix matrix(std::int64_t n_out, std::int64_t n_in) { return matrix(n_out, n_in, dtype_); }
  WeightMatrix matrix(std::int64_t n_out, std::int64_t n_in, DType dtype) {
    if (n_in % dtype_info(dtype).block != 0)
      fail(ErrorKind::kOption, "rows of {} weights as {}: expected a multiple of {}", n_in, dtype_name(dtype),
           dtype_info(dtype).block);
    const Tensor& w = owned_.emplace_back(dtype, std::initializer_list<std::int64_t>{n_out, n_in});
    context_.pool->parallel_for(n_out, kRowGrain, [&](std::int64_t begin, std::int64_t end, int worker) {
      std::vector<float>& row = scratch_[worker];
      row.resize(n_in);
      for (std::int64_t r = begin; r < end; ++r) {
        fill_row(table_, seed_, first_row_ + r, row);
        quantise_rows(view_of(row.data(), {1, n_in}), w.view().rows(r, r + 1));
      }
    });
    first_row_ += n_out;
    return WeightMatrix(w);
  }

  std::span<const float> vector(std::int64_t n, float value) {
    float* data = owned_.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{n}).as<float>();
    std::fill_n(data, n, value);
    return std::span(data, n);
  }

  ExpertWeights expert(const ModelConfig& config) {
    const std::int64_t ffn = config.experts.ffn;
    ExpertWeights e;
    e.gate = matrix(ffn, config.hidden);
    e.up = matrix(ffn, config.hidden);
    e.down = matrix(config.hidden, ffn);
    if (config.experts.biases) {
      e.gate_bias = vector(ffn, kBias);
      e.up_bias = vector(ffn, -kBias);
      e.down_bias = vector(config.hidden, kBias);
    }
    return e;
  }

  DeltaWeights delta(const ModelConfig& config) {
    const DeltaConfig& d = config.delta;
    DeltaWeights w;
    w.qkv = matrix(d.channels(), config.hidden);
    w.z = matrix(d.value_width(), config.hidden);
    w.beta = matrix(d.n_v_heads, config.hidden);
    w.alpha = matrix(d.n_v_heads, config.hidden);
    w.out = matrix(config.hidden, d.value_width());
    w.conv = vector(d.channels() * d.taps, 1.0f / static_cast<float>(d.taps));
    w.a = vector(d.n_v_heads, -1.0f);
    w.dt = vector(d.n_v_heads, 0.0f);
    w.norm = vector(d.d_v, 1.0f);
    return w;
  }

  void add_attention(const ModelConfig& config, LayerWeights& w) {
    const std::int64_t q_width = config.n_heads * config.head_dim, kv_width = config.n_kv_heads * config.head_dim;
    w.q = matrix(q_width, config.hidden);
    if (config.output_gate) w.q_gate = matrix(q_width, config.hidden);
    w.k = matrix(kv_width, config.hidden);
    w.v = matrix(kv_width, config.hidden);
    w.o = matrix(config.hidden, q_width);
    if (config.qkv_bias) {
      w.q_bias = vector(q_width, 0.0f);
      w.k_bias = vector(kv_width, 0.0f);
      w.v_bias = vector(kv_width, 0.0f);
    }
    if (config.o_bias) w.o_bias = vector(config.hidden, kBias);
    if (config.sinks) w.sinks = vector(config.n_heads, 0.0f);
    if (config.qk_norm) {
      w.q_norm = vector(config.qk_norm_all ? q_width : config.head_dim, 1.0f);
      w.k_norm = vector(config.qk_norm_all ? kv_width : config.head_dim, 1.0f);
    }
  }

  LayerWeights layer(const ModelConfig& config, std::int64_t index) {
    LayerWeights w;
    if (config.norms != NormOrder::kBehind) {
      w.attn_norm = vector(config.hidden, 1.0f);
      w.ffn_norm = vector(config.hidden, 1.0f);
    }
    if (config.norms != NormOrder::kBefore) {
      w.attn_out_norm = vector(config.hidden, 1.0f);
      w.ffn_out_norm = vector(config.hidden, 1.0f);
    }
    if (config.has_state(index))
      w.delta = delta(config);
    else
      add_attention(config, w);
    if (config.experts.n > 0) {
      w.router = matrix(config.experts.n, config.hidden, DType::kF32);
      for (std::int64_t e = 0; e < config.experts.n; ++e) w.experts.push_back(expert(config));
      if (config.experts.biases) w.router_bias = vector(config.experts.n, 0.0f);
      if (config.experts.shared > 0) {
        w.shared.gate = matrix(config.experts.shared, config.hidden);
        w.shared.up = matrix(config.experts.shared, config.hidden);
        w.shared.down = matrix(config.hidden, config.experts.shared);
        w.shared_gate = matrix(1, config.hidden, DType::kF32);
      }
      return w;
    }
    w.gate = matrix(config.ffn, config.hidden);
    w.up = matrix(config.ffn, config.hidden);
    w.down = matrix(config.hidden, config.ffn);
    return w;
  }

 private:
  DType dtype_;
  std::uint64_t seed_;
  const CpuContext& context_;
  std::vector<Tensor>& owned_;
  NormalTable table_;
  std::vector<std::vector<float>> scratch_;  // by worker: a row
  std::uint64_t first_row_ = 1;              // rows are numbered over all tensors; row 0's draws made the table
};

}  // namespace

std::unique_ptr<Model> Model::random(const ModelConfig& config, DType dtype, const ModelOptions& options,
                                     std::uint64_t seed, const CpuContext& context) {
  std::unique_ptr<Model> model(new Model);
  model->set_config(config, options.context);
  RandomWeights weights(dtype, seed, context, model->owned_);
  model->embedding_ = weights.matrix(config.vocab, config.hidden);
  for (std::int64_t i = 0; i < config.n_layers; ++i) model->layers_.push_back(weights.layer(config, i));
  model->output_norm_ = weights.vector(config.hidden, static_cast<float>(1.0 / config.logit_divisor));
  model->head_ = config.tied_embeddings ? model->embedding_ : weights.matrix(config.vocab, config.hidden);
  return model;
}

}  // namespace mneme

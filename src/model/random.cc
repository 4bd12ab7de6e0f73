// A model of a given shape with random weights: what `mneme bench --shape` runs.
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

// Weights are drawn from so many normal numbers made once: four a 64-bit draw, so billions of weights take seconds.
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

}  // namespace

std::unique_ptr<Model> Model::random(const ModelConfig& config, DType dtype, const ModelOptions& options,
                                     std::uint64_t seed, const CpuContext& context) {
  std::unique_ptr<Model> model(new Model);
  model->config_ = config;
  model->max_context_ = apply_limits(model->config_, options.context);
  model->rope_ = RopeTable::make(config.rope, config.head_dim, model->max_context_);

  NormalTable table(kTable);
  Rng rng(seed);
  for (float& v : table) v = static_cast<float>(kStandardDeviation * rng.normal());
  std::vector<std::vector<float>> scratch(static_cast<std::size_t>(context.pool->size()));
  std::uint64_t first_row = 1;  // rows are numbered over all tensors; row 0's draws made the table

  const auto matrix = [&](std::int64_t n_out, std::int64_t n_in) -> ConstTensorView {
    if (n_in % dtype_info(dtype).block != 0)
      fail(ErrorKind::kOption, "rows of {} weights as {}: expected a multiple of {}", n_in, dtype_name(dtype),
           dtype_info(dtype).block);
    const Tensor& w = model->owned_.emplace_back(dtype, std::initializer_list<std::int64_t>{n_out, n_in});
    context.pool->parallel_for(n_out, kRowGrain, [&](std::int64_t begin, std::int64_t end, int worker) {
      std::vector<float>& row = scratch[static_cast<std::size_t>(worker)];
      row.resize(static_cast<std::size_t>(n_in));
      for (std::int64_t r = begin; r < end; ++r) {
        fill_row(table, seed, first_row + static_cast<std::uint64_t>(r), row);
        quantise_rows(view_of(row.data(), {1, n_in}), w.view().rows(r, r + 1));
      }
    });
    first_row += static_cast<std::uint64_t>(n_out);
    return w;
  };
  const auto vector = [&](std::int64_t n, float value) -> std::span<const float> {
    float* data = model->owned_.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{n}).as<float>();
    std::fill_n(data, n, value);
    return {data, static_cast<std::size_t>(n)};
  };

  const std::int64_t q_width = config.n_heads * config.head_dim, kv_width = config.n_kv_heads * config.head_dim;
  model->embedding_ = WeightMatrix(matrix(config.vocab, config.hidden));
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    LayerWeights& w = model->layers_.emplace_back();
    w.attn_norm = vector(config.hidden, 1.0f);
    w.ffn_norm = vector(config.hidden, 1.0f);
    w.q = WeightMatrix(matrix(q_width, config.hidden));
    w.k = WeightMatrix(matrix(kv_width, config.hidden));
    w.v = WeightMatrix(matrix(kv_width, config.hidden));
    w.o = WeightMatrix(matrix(config.hidden, q_width));
    if (config.qkv_bias) {
      w.q_bias = vector(q_width, 0.0f);
      w.k_bias = vector(kv_width, 0.0f);
      w.v_bias = vector(kv_width, 0.0f);
    }
    if (config.qk_norm) {
      w.q_norm = vector(config.head_dim, 1.0f);
      w.k_norm = vector(config.head_dim, 1.0f);
    }
    w.gate = WeightMatrix(matrix(config.ffn, config.hidden));
    w.up = WeightMatrix(matrix(config.ffn, config.hidden));
    w.down = WeightMatrix(matrix(config.hidden, config.ffn));
  }
  model->output_norm_ = vector(config.hidden, 1.0f);
  model->head_ = config.tied_embeddings ? model->embedding_ : WeightMatrix(matrix(config.vocab, config.hidden));
  return model;
}

}  // namespace mneme

#include "apps/bench/step_cost.h"

#include <algorithm>

namespace mneme {
namespace {

// Multiply-adds of one row through the layers' matrices.
std::int64_t layer_weights(const ModelConfig& c) {
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  return c.n_layers * c.hidden * (2 * q + 2 * kv + 3 * c.ffn);
}

}  // namespace

StepCost& StepCost::operator+=(const StepCost& other) {
  weights += other.weights;
  kv_read += other.kv_read;
  kv_written += other.kv_written;
  index_read += other.index_read;
  operations += other.operations;
  return *this;
}

StepCost StepCost::scaled(double factor) const {
  return {.weights = weights * factor,
          .kv_read = kv_read * factor,
          .kv_written = kv_written * factor,
          .index_read = index_read * factor,
          .operations = operations * factor};
}

WeightBytes weight_bytes_of(const Model& model) {
  return {.step = static_cast<double>(model.step_weight_bytes()),
          .embedding_row = static_cast<double>(model.embedding().stride_bytes()),
          .head = static_cast<double>(model.head().bytes())};
}

StepCost dense_cost(const Model& model, const KvShape& kv, std::int64_t first, std::int64_t n_rows, std::int64_t batch,
                    bool logits) {
  return dense_cost(model.config(), weight_bytes_of(model), kv, first, n_rows, batch, logits);
}

StepCost dense_cost(const ModelConfig& c, const WeightBytes& weights, const KvShape& kv, std::int64_t first,
                    std::int64_t n_rows, std::int64_t batch, bool logits) {
  const std::int64_t end = first + n_rows, rows = n_rows * batch;
  const std::int64_t from = c.sliding_window > 0 ? std::max<std::int64_t>(0, first - c.sliding_window + 1) : 0;
  std::int64_t pairs = 0;  // of a query and a key that it sees
  for (std::int64_t p = first; p < end; ++p) pairs += c.sliding_window > 0 ? std::min(p + 1, c.sliding_window) : p + 1;

  StepCost cost;
  cost.weights = weights.step + static_cast<double>(rows - 1) * weights.embedding_row;
  if (!logits) cost.weights -= weights.head;
  cost.kv_read = static_cast<double>(batch * (end - from)) * static_cast<double>(kv.bytes_per_token());
  cost.kv_written = static_cast<double>(rows) * static_cast<double>(kv.bytes_per_token());
  cost.operations = 2.0 * static_cast<double>(rows * layer_weights(c)) +
                    4.0 * static_cast<double>(batch * c.n_layers * c.n_heads * c.head_dim) * static_cast<double>(pairs);
  if (logits) cost.operations += 2.0 * static_cast<double>(batch * c.hidden * c.vocab);
  return cost;
}

double floor_seconds(const StepCost& cost, double bytes_per_second, double operations_per_second) {
  const double moving = cost.bytes() / bytes_per_second;
  return operations_per_second > 0 ? std::max(moving, cost.operations / operations_per_second) : moving;
}

std::int64_t activation_estimate(const ModelConfig& c, std::int64_t rows, std::int64_t sequences) {
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  // f32: the residual and its norm; q, k, v and what was attended; gate, up and their product.
  const std::int64_t row = 2 * c.hidden + 2 * q + 2 * kv + 3 * c.ffn;
  return 4 * (rows * row + sequences * (c.vocab + c.hidden));
}

std::int64_t parameter_count(const ModelConfig& c) {
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  std::int64_t n =
      layer_weights(c) + (c.tied_embeddings ? 1 : 2) * c.vocab * c.hidden + (2 * c.n_layers + 1) * c.hidden;
  if (c.qkv_bias) n += c.n_layers * (q + 2 * kv);
  if (c.qk_norm) n += c.n_layers * 2 * c.head_dim;
  return n;
}

}  // namespace mneme

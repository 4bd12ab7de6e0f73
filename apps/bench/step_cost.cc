#include "apps/bench/step_cost.h"

#include <algorithm>
#include <cmath>

#include "src/base/ratio.h"
#include "src/formats/weight_names.h"

namespace mneme {
namespace {

// Weights of the layers' matrices, with so many experts of each where they are mixtures.
std::int64_t layer_weights(const ModelConfig& c, std::int64_t n_experts) {
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  const std::int64_t feed_forward = c.experts.n > 0 ? c.experts.n + n_experts * 3 * c.experts.ffn : 3 * c.ffn;
  return c.n_layers * c.hidden * (2 * q + 2 * kv + feed_forward);
}

// Pairs of a query and a key that it sees, of positions [first, end).
std::int64_t pairs_seen(std::int64_t window, std::int64_t first, std::int64_t end) {
  std::int64_t pairs = 0;
  for (std::int64_t p = first; p < end; ++p) pairs += window > 0 ? std::min(p + 1, window) : p + 1;
  return pairs;
}

// How many times the experts of one row `rows` rows together read, where each goes to its own at random.
double experts_read(const ExpertConfig& e, std::int64_t rows) {
  if (e.n == 0) return 1.0;
  const double share = real(e.n_used) / real(e.n);
  return (1.0 - std::pow(1.0 - share, real(rows))) / share;
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
  return {.step = real(model.step_weight_bytes()),
          .embedding_row = real(model.embedding().stride_bytes()),
          .head = real(model.head().bytes()),
          .experts = real(model.step_expert_bytes())};
}

StepCost dense_cost(const Model& model, const KvShape& kv, std::int64_t first, std::int64_t n_rows, std::int64_t batch,
                    bool logits) {
  return dense_cost(model.config(), weight_bytes_of(model), kv, first, n_rows, batch, logits);
}

StepCost dense_cost(const ModelConfig& c, const WeightBytes& weights, const KvShape& kv, std::int64_t first,
                    std::int64_t n_rows, std::int64_t batch, bool logits) {
  const std::int64_t end = first + n_rows, rows = n_rows * batch;
  std::int64_t pairs = 0, tokens = 0;  // over all layers
  const std::int64_t windowed = std::count(c.windowed.begin(), c.windowed.end(), true);
  const std::int64_t n_windows = c.sliding_window == 0 ? 0 : c.windowed.empty() ? c.n_layers : windowed;
  for (const auto& [n, window] : {std::pair{n_windows, c.sliding_window}, {c.n_layers - n_windows, std::int64_t{0}}}) {
    if (n == 0) continue;
    pairs += n * pairs_seen(window, first, end);
    tokens += n * (end - (window > 0 ? std::max<std::int64_t>(0, first - window + 1) : 0));
  }

  StepCost cost;
  cost.weights = weights.step + real(rows - 1) * weights.embedding_row;
  cost.weights += (experts_read(c.experts, rows) - 1.0) * weights.experts;
  if (!logits) cost.weights -= weights.head;
  const double per_layer = real(kv.bytes_per_token()) / real(kv.n_layers);
  cost.kv_read = real(batch * tokens) * per_layer;
  cost.kv_written = real(rows) * real(kv.bytes_per_token());
  cost.operations =
      2.0 * real(rows * layer_weights(c, c.experts.n_used)) + 4.0 * real(batch * c.n_heads * c.head_dim) * real(pairs);
  if (logits) cost.operations += 2.0 * real(batch * c.hidden * c.vocab);
  return cost;
}

double floor_seconds(const StepCost& cost, double bytes_per_second, double operations_per_second) {
  const double moving = cost.bytes() / bytes_per_second;
  return operations_per_second > 0 ? std::max(moving, cost.operations / operations_per_second) : moving;
}

std::int64_t parameter_count(const ModelConfig& c) {
  if (c.n_state_layers() > 0) {  // layers of two kinds: as their weights say
    std::int64_t all = 0;
    for_each_weight(c, [&all](const WeightSpec& w) {
      all += w.n_out * std::max<std::int64_t>(w.n_in, 1) * std::max<std::int64_t>(w.n_experts, 1);
    });
    return all;
  }
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  std::int64_t n = layer_weights(c, c.experts.n) + (c.tied_embeddings ? 1 : 2) * c.vocab * c.hidden +
                   (2 * c.n_layers + 1) * c.hidden;
  if (c.qkv_bias) n += c.n_layers * (q + 2 * kv);
  if (c.qk_norm) n += c.n_layers * 2 * c.head_dim;
  if (c.o_bias) n += c.n_layers * c.hidden;
  if (c.sinks) n += c.n_layers * c.n_heads;
  if (c.experts.biases) n += c.n_layers * c.experts.n * (1 + 2 * c.experts.ffn + c.hidden);
  return n;
}

}  // namespace mneme

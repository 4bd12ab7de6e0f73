// A sequence for contract tests: random keys and values, slowly changing queries, and a method.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/rng.h"
#include "src/methods/decode_attention.h"
#include "src/ops/norm_rope/rope.h"

namespace mneme {

inline constexpr std::int32_t kLayers = 3, kHeadDim = 8;
inline const RopeTable kRope = RopeTable::make({.theta = 100.0}, kHeadDim, 4096);

enum class Values { kReal, kSmallIntegers };

// One sequence with random keys, values and queries, and a method.
class Sequence {
 public:
  Sequence(const MethodShape& shape, std::shared_ptr<const Plan> plan, Values values, std::uint64_t seed)
      : shape_(shape),
        pool_(std::make_unique<PagePool>(KvShape{shape.n_layers, shape.n_kv_heads, shape.head_dim, shape.kv_dtype},
                                         4096)),
        cache_(*pool_),
        values_(values),
        rng_(seed) {
    if (plan) cache_.set_key_basis(plan->key_basis);
    if (plan) method_ = std::make_unique<MethodState>(std::move(plan));
    queries_.resize(kLayers, std::vector<float>(width(), 0.0f));
  }

  std::size_t width() const { return shape_.n_heads * shape_.head_dim; }

  void append(std::int32_t n) {
    cache_.extend(n);
    std::vector<float> k(shape_.head_dim), v(k.size());
    for (std::int32_t t = cache_.length() - n; t < cache_.length(); ++t)
      for (std::int32_t l = 0; l < kLayers; ++l)
        for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
          for (float& x : k) x = draw();
          for (float& x : v) x = draw();
          store_kv(k.data(), v.data(), shape_.attention(), cache_.token(l, m, t));
        }
  }
  // Queries that change a little per step, some heads more than others.
  void new_queries() {
    for (auto& layer : queries_)
      for (std::size_t i = 0; i < layer.size(); ++i) {
        const float keep = (i / shape_.head_dim) % 3 == 0 ? 0.5f : 0.95f;
        const float fresh = draw();
        layer[i] = values_ == Values::kSmallIntegers ? (rng_.uniform() < keep ? layer[i] : fresh)
                                                     : keep * layer[i] + (1 - keep) * 2 * fresh;
      }
  }
  void close_units(DecodeAttention& attention) {
    const DecodeRow row{.cache = &cache_, .method = method_.get()};
    for (std::int32_t l = 0; l < kLayers; ++l) attention.close_units(l, std::span(&row, 1));
  }

  SequenceCache& cache() { return cache_; }
  MethodState* method() { return method_.get(); }
  void set_method(std::unique_ptr<MethodState> m) { method_ = std::move(m); }
  const std::vector<float>& query(std::int32_t layer) const { return queries_[layer]; }
  PagePool& pool() { return *pool_; }

 private:
  float draw() {
    return values_ == Values::kSmallIntegers ? static_cast<float>(static_cast<int>(rng_.below(5)) - 2)
                                             : static_cast<float>(rng_.normal());
  }
  MethodShape shape_;
  std::unique_ptr<PagePool> pool_;
  SequenceCache cache_;
  std::unique_ptr<MethodState> method_;
  Values values_;
  Rng rng_;
  std::vector<std::vector<float>> queries_;
};

// Sinks, selection and window of a selection head; a token that is in two of them counts twice.
inline std::vector<std::int32_t> attended_tokens(const MethodState& method, std::int32_t l, std::int32_t head,
                                                 std::int32_t length) {
  const std::int32_t kv_head = head * method.plan().shape.n_kv_heads / method.plan().selection_heads();
  const Region r = method.region(l, kv_head, length);
  if (method.keeps_tokens(l) && !r.everything) return method.layer(l).kept_tokens[head];
  std::vector<std::uint8_t> marks(length, 0);
  method.mark_selected(l, head, kv_head, marks);
  std::vector<std::int32_t> tokens;
  for (std::int32_t t = 0; t < length; ++t) {
    if (t < r.sink || t >= r.recent_from) tokens.push_back(t);
    if (marks[t] != 0) tokens.push_back(t);
  }
  return tokens;
}

}  // namespace mneme

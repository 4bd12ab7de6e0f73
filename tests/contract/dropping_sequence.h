// A sequence under a method that drops at the end of prefills, a full copy of its keys, and the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "reference/methods/prefill_end_ref.h"
#include "src/base/rng.h"
#include "src/methods/decode_attention.h"
#include "src/methods/prefill_end.h"
#include "src/ops/attention/attention.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/contract/contract_case.h"

namespace mneme::dropping {

inline constexpr std::int32_t kLayers = 3, kHeadDim = 8;

inline Recipe recipe_of(const Method& m, std::int32_t budget) {
  Recipe r = make_recipe(m.name, {.budget = budget});
  if (r.decode) r = make_recipe(m.name, {.budget = budget, .sink = 0, .recent = 0});
  apply_overrides(m.overrides, r);
  return r;
}

// One sequence under a method, and a full copy of its keys.
class Sequence {
 public:
  Sequence(const MethodShape& shape, std::shared_ptr<const Plan> plan, const CpuContext& context, std::uint64_t seed)
      : shape_(shape),
        pool_(std::make_unique<PagePool>(KvShape{shape.n_layers, shape.n_kv_heads, shape.head_dim, shape.kv_dtype},
                                         2048)),
        cache_(*pool_),
        whole_(*pool_),
        method_(plan),
        decode_(context),
        prefill_end_(context),
        context_(context),
        rng_(seed) {
    for (std::int32_t l = 0; l < kLayers; ++l) reference_.emplace_back(plan, l);
  }

  std::size_t width() const { return shape_.n_heads * shape_.head_dim; }

  // n prefill rows with `left` more to come, or one decode row. Returns their attention, layer by layer.
  std::vector<float> pass(std::int32_t n, bool decodes, std::int32_t left) {
    draw(n);
    return attend(n, decodes, left);
  }
  std::vector<float> prefill(std::int32_t n, std::int32_t left = 0) {
    std::vector<float> out = pass(n, false, left);
    commit();
    return out;
  }
  std::vector<float> decode() {
    std::vector<float> out = pass(1, true, 0);
    commit();
    return out;
  }
  void commit() { method_.commit(cache_); }

  void step_back(std::int32_t n) {
    cache_.truncate(cache_.length() - n);
    method_.truncate(cache_.length());
  }
  // Recomputes the last n tokens with the same keys, values and queries.
  std::vector<float> again(std::int32_t n, bool decodes, std::int32_t left) {
    cache_.extend(n);
    for (std::int32_t l = 0; l < kLayers; ++l)
      for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m)
        for (std::int32_t t = cache_.length() - n; t < cache_.length(); ++t)
          std::copy_n(whole_.token(l, m, t), shape_.attention().token_bytes(), cache_.token(l, m, t));
    return attend(n, decodes, left);
  }

  SequenceCache& cache() { return cache_; }
  const SequenceCache& whole() const { return whole_; }
  MethodState& method() { return method_; }
  PagePool& pool() { return *pool_; }
  ReferencePrefillEnd& reference(std::int32_t l) { return reference_[l]; }
  std::vector<ReferencePrefillEnd>& references() { return reference_; }
  const std::vector<float>& queries(std::int32_t l) const { return queries_[l]; }

 private:
  void draw(std::int32_t n) {
    cache_.extend(n);
    whole_.extend(n);
    std::vector<float> k(shape_.head_dim), v(k.size());
    queries_.assign(kLayers, {});
    for (std::int32_t l = 0; l < kLayers; ++l) {
      for (std::int32_t t = whole_.length() - n; t < whole_.length(); ++t)
        for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
          for (float& x : k) x = static_cast<float>(rng_.normal());
          for (float& x : v) x = static_cast<float>(rng_.normal());
          for (SequenceCache* c : {&cache_, &whole_})
            store_kv(k.data(), v.data(), shape_.attention(), c->token(l, m, t));
        }
      auto& q = queries_[l];
      q.resize(n * width());
      for (float& x : q) x = 1.5f * static_cast<float>(rng_.normal());
    }
  }

  std::vector<float> attend(std::int32_t n, bool decodes, std::int32_t left) {
    const AttentionShape shape = shape_.attention();
    std::vector<float> all;
    for (std::int32_t l = 0; l < kLayers; ++l) {
      const float* q = queries_[l].data();
      std::vector<float> out(n * width()), lse(n * shape_.n_heads, NAN);
      SeenTokens rows{.cache = &cache_,
                      .method = &method_,
                      .n_rows = n,
                      .decodes = decodes,
                      .prefill_left = left,
                      .q = q,
                      .q_stride = static_cast<std::int64_t>(width()),
                      .lse = lse.data()};
      const bool wanted = PrefillEnd::wants_lse(l, rows);
      if (decodes) {
        const DecodeRow row{.cache = &cache_, .method = &method_, .q = q, .out = out.data(), .lse = lse.data()};
        decode_.run(l, std::span(&row, 1), shape);
      } else {
        std::vector<std::vector<KvRun>> runs(shape_.n_kv_heads);
        std::vector<PrefillPart> parts;
        for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
          auto& r = runs[m];
          cache_.append_runs(l, m, 0, cache_.length(), r);
          parts.push_back({.q = q + m * shape.group * shape.head_dim, .q_stride = rows.q_stride, .runs = r});
        }
        std::vector<PrefillHead> heads;
        for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m)
          heads.push_back({.parts = std::span(parts).subspan(m, 1),
                           .n_rows = n,
                           .out = reinterpret_cast<std::byte*>(out.data() + m * shape.group * shape.head_dim),
                           .out_stride = rows.q_stride,
                           .lse = wanted ? lse.data() + m * n * shape.group : nullptr});
        // In f64 where mass is observed: the fast form may multiply in bf16, and its rounding is not what is tested
        // here.
        wanted ? attend_prefill_ref(heads, shape) : attend_prefill_cpu(heads, shape, context_);
      }
      prefill_end_.run(l, std::span(&rows, 1), shape);
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }

  MethodShape shape_;
  std::unique_ptr<PagePool> pool_;
  SequenceCache cache_, whole_;
  MethodState method_;
  DecodeAttention decode_;
  PrefillEnd prefill_end_;
  CpuContext context_;
  Rng rng_;
  std::vector<ReferencePrefillEnd> reference_;
  std::vector<std::vector<float>> queries_;
};

inline std::vector<std::int32_t> positions_of(const SequenceCache& cache, std::int32_t layer, std::int32_t head) {
  std::vector<std::int32_t> positions;
  for (const TokenRange& r : cache.stored(layer, head))
    for (std::int32_t t = r.begin; t < r.end; ++t) positions.push_back(t);
  return positions;
}

}  // namespace mneme::dropping

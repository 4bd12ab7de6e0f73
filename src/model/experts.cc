// Mixtures of experts on the CPU: the router, then one GEMM for all rows of each expert that has any.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "src/model/layer_pass.h"
#include "src/model/routing.h"
#include "src/ops/norm_rope/pointwise.h"

namespace mneme {

void route(std::span<const float> logits, std::int64_t n_used, bool normalise, std::span<RoutedExpert> out) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::int32_t e) { return std::isnan(logits[e]) ? -HUGE_VALF : logits[e]; };
  const auto better = [&](std::int32_t a, std::int32_t b) { return key(a) > key(b) || (key(a) == key(b) && a < b); };
  std::partial_sort(order.begin(), order.begin() + n_used, order.end(), better);
  const float largest = logits[order[0]];
  float all = 0.0f, used = 0.0f;
  for (const float v : logits) all += std::exp(v - largest);
  for (std::int64_t i = 0; i < n_used; ++i) used += std::exp(logits[order[i]] - largest);
  for (std::int64_t i = 0; i < n_used; ++i)
    out[i] = {order[i], std::exp(logits[order[i]] - largest) / (normalise ? used : all)};
}

namespace {

struct RoutedToken {
  std::int64_t row;
  float share;
};

// Rows of each expert, in order.
std::vector<std::vector<RoutedToken>> rows_of_experts(const LayerPass& p, const ExpertsPlan& plan) {
  const TensorView logits = p.memory.router.get(DType::kF32, p.n(), plan.n);
  gemm_cpu(p.h, std::array{GemmOutput{.w = &p.w.router, .y = logits, .bias = or_null(p.w.router_bias)}}, p.context);
  std::vector<std::vector<RoutedToken>> rows(plan.n);
  std::vector<RoutedExpert> routed(plan.n_used);
  for (std::int64_t i = 0; i < p.n(); ++i) {
    route({logits.row_as<float>(i), static_cast<std::size_t>(plan.n)}, plan.n_used, plan.normalise, routed);
    for (const RoutedExpert& e : routed) rows[e.expert].push_back({i, e.share});
  }
  p.lap(Op::kProducts);
  return rows;
}

// to [n, hidden] += share times the expert's output, of its rows.
void run_expert(const LayerPass& p, const ExpertsPlan& plan, const ExpertWeights& e, std::span<const RoutedToken> rows,
                const TensorView& to) {
  const std::int64_t m = rows.size(), hidden = p.config.hidden, ffn = plan.width;
  const TensorView in = p.memory.expert_in.get(DType::kF32, m, hidden);
  for (std::int64_t i = 0; i < m; ++i) std::memcpy(in.row(i), p.h.row(rows[i].row), in.stride_bytes());
  const TensorView g = p.memory.gate.get(DType::kF32, m, ffn), u = p.memory.up.get(DType::kF32, m, ffn);
  gemm_cpu(in,
           std::array{GemmOutput{.w = &e.gate, .y = g, .bias = or_null(e.gate_bias)},
                      GemmOutput{.w = &e.up, .y = u, .bias = or_null(e.up_bias)}},
           p.context);
  const TensorView activated = p.memory.ffn_hidden.get(DType::kF32, m, ffn);
  plan.limit > 0.0 ? clamped_swiglu_cpu(g, u, static_cast<float>(plan.limit), activated, p.context)
                   : swiglu_cpu(g, u, activated, p.context);
  const TensorView out = p.memory.expert_out.get(DType::kF32, m, hidden);
  gemm_cpu(activated, std::array{GemmOutput{.w = &e.down, .y = out, .bias = or_null(e.down_bias)}}, p.context);
  for (std::int64_t i = 0; i < m; ++i) {
    float* x = to.row_as<float>(rows[i].row);
    const float* y = out.row_as<float>(i);
    for (std::int64_t j = 0; j < hidden; ++j) x[j] += rows[i].share * y[j];
  }
}

// to += the output of the expert that all rows have, by the sigmoid of its gate.
void run_shared_expert(const LayerPass& p, ExpertsPlan plan, const TensorView& to) {
  const TensorView gates = p.memory.router.get(DType::kF32, p.n(), 1);
  gemm_cpu(p.h, std::array{GemmOutput{.w = &p.w.shared_gate, .y = gates}}, p.context);
  std::vector<RoutedToken> rows;
  for (std::int64_t i = 0; i < p.n(); ++i) rows.push_back({i, 1.0f / (1.0f + std::exp(-*gates.row_as<float>(i)))});
  plan.width = plan.shared;
  run_expert(p, plan, p.w.shared, rows, to);
}

}  // namespace

// A row sums its experts by ascending number, whatever the batch. Of several ranks each sums those that it has weights
// of, and all of them add the sum.
void run_block(LayerPass& p, const ExpertsPlan& plan) {
  norm_input(p, p.w.ffn_norm, DType::kF32);
  TensorView to = p.x;
  if (p.ranks != nullptr) {
    to = p.memory.partial.get(DType::kF32, p.n(), p.config.hidden);
    std::fill_n(to.row_as<float>(0), p.n() * p.config.hidden, 0.0f);
  }
  const std::vector<std::vector<RoutedToken>> rows = rows_of_experts(p, plan);
  for (std::size_t e = 0; e < rows.size(); ++e)
    if (!rows[e].empty() && p.w.experts[e].gate.n_out() > 0) run_expert(p, plan, p.w.experts[e], rows[e], to);
  if (plan.shared > 0 && p.n() > 0) run_shared_expert(p, plan, to);
  if (p.ranks != nullptr) add_rows_of_ranks(p, to);
  p.lap(Op::kProducts);
}

}  // namespace mneme

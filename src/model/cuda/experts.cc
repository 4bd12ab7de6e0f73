#include "src/model/cuda/experts.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/ops/norm_rope/pointwise_cuda.h"

namespace mneme {

CudaExperts::CudaExperts(const ModelConfig& config, double norm_eps, std::int32_t max_rows, const RankRange& mine,
                         bool reordered, const Stream& stream)
    : config_(config.experts), mine_(mine), hidden_(count32(config.hidden)), eps_(static_cast<float>(norm_eps)) {
  if (config_.n > kMaxExpertsCuda || config_.n_used > kMaxExpertsUsedCuda)
    fail(ErrorKind::kUnsupported, "--device cuda: {} experts, {} of them used; expected at most {} and {}", config_.n,
         config_.n_used, kMaxExpertsCuda, kMaxExpertsUsedCuda);
  const std::size_t rows = max_rows, pairs = rows * config_.n_used, ffn = config_.ffn, hidden = hidden_;
  ArenaLayout arrays;
  arrays.add(routed_.logits, rows * config_.n * 4);
  arrays.add(routed_.experts, pairs * 4);
  arrays.add(routed_.shares, pairs * 4);
  arrays.add(routed_.scales, kFewRoutedRows * 4);
  arrays.add(routed_.arrived, 4);
  arrays.add(sorted_.order, pairs * 4);
  arrays.add(sorted_.slots, pairs * 4);
  arrays.add(sorted_.tiles, pairs * 3 * 4);
  arrays.add(sorted_.n_tiles, 4);
  arrays.add(product_, pairs * ffn * 2);
  arrays.add(gathered_, reordered ? pairs * std::max(ffn, hidden) * 2 : 0);
  arrays.add(out_, pairs * hidden * 4);
  arena_ = DeviceBuffer(arrays.total(), "activations of experts (max_batched_tokens makes them smaller)");
  arrays.assign(arena_.data());
  set_bytes(arena_.data(), 0, arena_.size(), stream);
}

std::int32_t CudaExperts::parts(std::int32_t n) const {
  return n == 1 && mine_.size() == config_.n ? combined_parts(hidden_) : 1;
}

bool CudaExperts::route(const CudaLayerWeights& w, std::int32_t n, const Buffers& rows, const CudaContext& context) {
  const std::int32_t n_experts = count32(config_.n), n_used = count32(config_.n_used), n_mine = count32(mine_.size());
  const RouterCuda router{.weights = w.router,
                          .bias = w.router_bias,
                          .norm_weight = w.ffn_norm,
                          .eps = eps_,
                          .hidden = hidden_,
                          .n_experts = n_experts,
                          .n_used = n_used,
                          .normalise = config_.normalise};
  sorted_.tile_rows = expert_tile_rows(n * n_used, n_experts);
  sorted_.first_expert = count32(mine_.first);
  const bool few = rows.deferred && n <= kFewRoutedRows && n_experts <= kFewRoutedExperts && hidden_ % 4 == 0;
  if (few) {
    route_few_cuda(router, rows.residual, n, n_mine, routed_, sorted_, context);
    return true;
  }
  route_cuda(router, rows.residual, n, routed_.logits, routed_.experts, routed_.shares, context);
  sort_pairs_cuda(routed_.experts, n * n_used, n_mine, sorted_, context);
  rms_norm_cuda(rows.residual, nullptr, n, hidden_, w.ffn_norm, eps_, rows.normed, context);
  return false;
}

GroupedGemmCuda CudaExperts::ordered(GroupedGemmCuda g, const CudaContext& context) const {
  if (g.w.columns == nullptr) return g;
  gather_pairs_cuda(g, routed_.experts, sorted_, gathered_, context);
  g.x = gathered_, g.by_slot = true;
  return g;
}

void CudaExperts::run(const CudaLayerWeights& w, std::int32_t n, const Buffers& rows, const CudaContext& context) {
  const std::int32_t n_used = count32(config_.n_used), n_pairs = n * n_used, n_mine = count32(mine_.size());
  const bool scaled_later = route(w, n, rows, context);
  const GroupedGemmCuda gate_up{.x = rows.normed,
                                .by_slot = false,
                                .n_used = n_used,
                                .w = w.expert_gate_up,
                                .bias = w.expert_gate_up_bias,
                                .y = product_,
                                .n_pairs = n_pairs,
                                .n_experts = n_mine};
  grouped_swiglu_cuda(ordered(gate_up, context), scaled_later ? routed_.scales : nullptr,
                      static_cast<float>(config_.limit), sorted_, context);
  const GroupedGemmCuda down = ordered({.x = product_,
                                        .by_slot = true,
                                        .n_used = n_used,
                                        .w = w.expert_down,
                                        .bias = w.expert_down_bias,
                                        .y = out_,
                                        .y_f32 = true,
                                        .n_pairs = n_pairs,
                                        .n_experts = n_mine},
                                       context);
  const CombineExpertsCuda sum{.y = out_,
                               .slots = sorted_.slots,
                               .experts = routed_.experts,
                               .shares = routed_.shares,
                               .n_used = n_used,
                               .hidden = hidden_,
                               .residual = rows.residual,
                               .partial = rows.partial,
                               .norm_weight = rows.next_norm,
                               .x_next = rows.next_norm == nullptr ? nullptr : rows.normed,
                               .sums = rows.sums};
  if (rows.next_norm != nullptr && parts(n) > 1) return grouped_gemm_combined_cuda(down, sum, context);
  grouped_gemm_cuda(down, sorted_, context);
  combine_experts_cuda(sum, n, context);
}

}  // namespace mneme

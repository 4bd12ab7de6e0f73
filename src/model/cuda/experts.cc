#include "src/model/cuda/experts.h"

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/ops/norm_rope/pointwise_cuda.h"

namespace mneme {

CudaExperts::CudaExperts(const ModelConfig& config, std::int32_t max_rows, const RankRange& mine)
    : config_(config.experts), mine_(mine), hidden_(count32(config.hidden)), eps_(static_cast<float>(config.rms_eps)) {
  if (config_.n > kMaxExpertsCuda || config_.n_used > kMaxExpertsUsedCuda)
    fail(ErrorKind::kUnsupported, "--device cuda: {} experts, {} of them used; expected at most {} and {}", config_.n,
         config_.n_used, kMaxExpertsCuda, kMaxExpertsUsedCuda);
  const std::size_t rows = max_rows, pairs = rows * config_.n_used, ffn = config_.ffn, hidden = hidden_;
  ArenaLayout arrays;
  arrays.add(logits_, rows * config_.n * 4);
  arrays.add(experts_, pairs * 4);
  arrays.add(shares_, pairs * 4);
  arrays.add(sorted_.order, pairs * 4);
  arrays.add(sorted_.slots, pairs * 4);
  arrays.add(sorted_.tiles, pairs * 3 * 4);
  arrays.add(sorted_.n_tiles, 4);
  arrays.add(gate_up_, pairs * 2 * ffn * 2);
  arrays.add(product_, pairs * ffn * 2);
  arrays.add(out_, pairs * hidden * 4);
  arena_ = DeviceBuffer(arrays.total(), "activations of experts (max_batched_tokens makes them smaller)");
  arrays.assign(arena_.data());
}

void CudaExperts::run(const CudaLayerWeights& w, std::int32_t n, const Rows& rows, const CudaContext& context) {
  const std::int32_t n_experts = count32(config_.n), n_used = count32(config_.n_used), ffn = count32(config_.ffn);
  const std::int32_t n_pairs = n * n_used, n_mine = count32(mine_.size());
  route_cuda({.weights = w.router,
              .bias = w.router_bias,
              .norm_weight = w.ffn_norm,
              .eps = eps_,
              .hidden = hidden_,
              .n_experts = n_experts,
              .n_used = n_used,
              .normalise = config_.normalise},
             rows.residual, n, logits_, experts_, shares_, context);
  sorted_.tile_rows = expert_tile_rows(n_pairs, n_experts);
  sorted_.first_expert = count32(mine_.first);
  sort_pairs_cuda(experts_, n_pairs, n_mine, sorted_, context);
  rms_norm_cuda(rows.residual, nullptr, n, hidden_, w.ffn_norm, eps_, rows.normed, context);
  grouped_gemm_cuda({.x = rows.normed,
                     .by_slot = false,
                     .n_used = n_used,
                     .w = w.expert_gate_up,
                     .bias = w.expert_gate_up_bias,
                     .y = gate_up_,
                     .y_f32 = false,
                     .n_pairs = n_pairs,
                     .n_experts = n_mine},
                    sorted_, context);
  expert_swiglu_cuda(gate_up_, n_pairs, ffn, static_cast<float>(config_.limit), product_, context);
  grouped_gemm_cuda({.x = product_,
                     .by_slot = true,
                     .n_used = n_used,
                     .w = w.expert_down,
                     .bias = w.expert_down_bias,
                     .y = out_,
                     .y_f32 = true,
                     .n_pairs = n_pairs,
                     .n_experts = n_mine},
                    sorted_, context);
  combine_experts_cuda({.y = out_,
                        .slots = sorted_.slots,
                        .experts = experts_,
                        .shares = shares_,
                        .n_used = n_used,
                        .hidden = hidden_,
                        .residual = rows.residual,
                        .partial = rows.partial,
                        .norm_weight = rows.next_norm,
                        .x_next = rows.next_norm == nullptr ? nullptr : rows.normed,
                        .sums = rows.sums},
                       n, context);
}

}  // namespace mneme

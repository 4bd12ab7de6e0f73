#include "src/model/cuda/step/head.h"

#include <algorithm>

#include "src/base/size32.h"

namespace mneme {

CudaHead::CudaHead(const CudaWeights& weights, const Model& model, std::int32_t max_rows, CudaGemms& gemms,
                   ForwardRanks& ranks, const StepLaunch& launch)
    : weights_(weights),
      config_(model.config()),
      max_rows_(max_rows),
      gemms_(gemms),
      ranks_(ranks),
      launch_(launch),
      n_absent_(size32(model.absent_tokens())) {
  if (n_absent_ == 0) return;
  const std::span<const std::int32_t> ids = model.absent_tokens();
  absent_ = DeviceBuffer(ids.size_bytes(), "ids without a token");
  copy_bytes(absent_.data(), ids.data(), ids.size_bytes(), launch.stream);
  launch.stream.synchronize();  // `ids` are pageable
}

void CudaHead::reserve(ArenaLayout& arena) {
  const auto rows = static_cast<std::size_t>(max_rows_);
  arena.add(logits_, rows * static_cast<std::size_t>(config_.vocab) * 4);
  arena.add(best_token_, rows * 4);
  arena.add(best_logprob_, rows * 4);
  arena.add(rules_, rows * sizeof(SamplingRule));
  host_logits_ = PinnedBuffer(rows * static_cast<std::size_t>(config_.vocab) * 4);
  host_best_ = PinnedBuffer(rows * 8);
  host_rules_ = PinnedBuffer(rows * sizeof(SamplingRule));
}

void CudaHead::run_few(const void* normed, std::int32_t n, const DeferredNorm& norm) {
  const CudaContext context = launch_.overlapped();
  if (computes())
    gemms_.few(normed, n, weights_.head(), norm, {.y = ranks_.head_output(logits_, 0), .stride = ranks_.head_stride()},
               context);
  finish(n, context);
}

void CudaHead::run_many(const std::byte* normed, std::int32_t n) {
  const CudaContext context = launch_.serial();
  const bool bf16 = !is_quantised(weights_.head().dtype);
  const std::int32_t most = bf16 ? gemms_.few_rows() : kSkinnyRows;
  for (std::int32_t first = 0; first < n && computes(); first += most) {
    const std::int32_t left = n - first;
    const std::byte* x = normed + std::int64_t{first} * config_.hidden * 2;
    float* y = ranks_.head_output(logits_, first);
    if (bf16 && left > most) {
      gemms_.many(x, left, weights_.head(), {.y = y, .f32 = true, .stride = ranks_.head_stride()});
      break;
    }
    gemms_.few(x, std::min(left, most), weights_.head(), {}, {.y = y, .stride = ranks_.head_stride()}, context);
  }
  finish(n, context);
}

void CudaHead::finish(std::int32_t n, const CudaContext& context) {
  launch_.lap(StepPhase::kGemm);
  ranks_.share_logits(logits_, n);
  if (config_.logit_cap != 0.0) soft_cap_cuda(logits_, static_cast<float>(config_.logit_cap), n, vocab(), context);
  forbid_tokens_cuda(logits_, absent_.as<std::int32_t>(), n_absent_, n, vocab(), context);
  argmax_cuda(logits_, n, vocab(), best_token_, best_logprob_, context);
  launch_.lap(StepPhase::kSampling);
}

float* CudaHead::host_logits(std::int32_t n) {
  if (n <= max_rows_) return host_logits_.as<float>();
  all_logits_.reserve(static_cast<std::size_t>(n) * static_cast<std::size_t>(config_.vocab) * sizeof(float));
  return all_logits_.as<float>();
}

void CudaHead::fetch(std::span<const std::int32_t> rows, std::span<const SamplingRule> rules, float* to) {
  if (rows.empty()) return;
  if (to != nullptr) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      copy_bytes(to + static_cast<std::int64_t>(i) * config_.vocab, logits_ + rows[i] * config_.vocab,
                 static_cast<std::size_t>(config_.vocab) * sizeof(float), launch_.stream);
    return;
  }
  const std::int32_t n = *std::max_element(rows.begin(), rows.end()) + 1;
  if (std::any_of(rules.begin(), rules.end(), [](const SamplingRule& r) { return r.temperature > 0; })) {
    auto* here = host_rules_.as<SamplingRule>();
    std::fill_n(here, n, SamplingRule{});
    for (std::size_t i = 0; i < rows.size(); ++i) here[rows[i]] = rules[i];
    copy_bytes(rules_, here, static_cast<std::size_t>(n) * sizeof(SamplingRule), launch_.stream);
    sample_cuda(logits_, rules_, n, vocab(), best_token_, best_logprob_, launch_.serial());
  }
  auto* tokens = host_best_.as<std::int32_t>();
  auto* logprobs = host_best_.as<float>() + max_rows_;
  copy_bytes(tokens, best_token_, static_cast<std::size_t>(n) * 4, launch_.stream);
  copy_bytes(logprobs, best_logprob_, static_cast<std::size_t>(n) * 4, launch_.stream);
  launch_.stream.synchronize();
  for (const std::int32_t row : rows) samples_.push_back({tokens[row], logprobs[row]});
}

}  // namespace mneme

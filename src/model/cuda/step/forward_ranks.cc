#include "src/model/cuda/step/forward_ranks.h"

#include "src/model/ranks/rank_forward.h"
#include "src/ops/norm_rope/rank_rows_cuda.h"

namespace mneme {

ForwardRanks::ForwardRanks(const CudaForwardOptions& options, const ModelConfig& config,
                           const CudaActivations& activations, CudaGemms& gemms, const StepLaunch& launch)
    : config_(config),
      activations_(activations),
      gemms_(gemms),
      launch_(launch),
      heads_(options.split == RankSplit::kHeads ? options.ranks : nullptr),
      stages_(options.split == RankSplit::kLayers ? options.ranks : nullptr) {
  if (heads_ != nullptr) vocab_part_ = static_cast<std::int32_t>(vocabulary_part(config.vocab, heads_->ranks().size()));
}

void ForwardRanks::reserve(ArenaLayout& arena, std::size_t n_rows, std::size_t head_rows) {
  const std::size_t part = head_rows * static_cast<std::size_t>(vocab_part_) * 4;
  const bool has_rows = (heads_ != nullptr && heads_->own_rows() == nullptr) || stages_ != nullptr;
  arena.add(rows_, has_rows ? n_rows * static_cast<std::size_t>(config_.hidden) * 4 : 0);
  arena.add(rank_logits_, part);
  arena.add(all_rank_logits_, heads_ != nullptr ? part * static_cast<std::size_t>(heads_->ranks().size()) : 0);
}

void ForwardRanks::take_own_rows() {
  if (heads_ != nullptr && heads_->own_rows() != nullptr) rows_ = heads_->own_rows();
}

RankRange ForwardRanks::experts() const {
  if (heads_ == nullptr) return {.first = 0, .end = config_.experts.n};
  return rank_experts(config_.experts.n, heads_->ranks().rank(), heads_->ranks().size());
}

std::int32_t ForwardRanks::parts_of_sums(std::int32_t n) const {
  return heads_ != nullptr ? heads_->row_parts(n, hidden()) : gemms_.parts_of_sums(config_.hidden, n);
}

void ForwardRanks::add(const void* x, const DeviceMatrix& w, std::int32_t n, const float* next_norm) {
  if (next_norm == nullptr && !heads_->adds_in_one(n, hidden())) {  // the sum has the residual: no kernel behind it
    float* const residual = activations_.residual;
    const bool first = heads_->ranks().rank() == 0;
    float* const mine = first ? residual : rows_;
    gemms_.many(x, n, w, {.y = mine, .f32 = true, .accumulate = first});
    launch_.lap(StepPhase::kGemm);
    heads_->all_reduce(mine, residual, static_cast<std::size_t>(n) * static_cast<std::size_t>(hidden()),
                       launch_.serial());
    return launch_.lap(StepPhase::kRanks);
  }
  if (next_norm != nullptr)
    gemms_.few(x, n, w, {}, {.y = rows_}, launch_.overlapped());
  else
    gemms_.many(x, n, w, {.y = rows_, .f32 = true});
  launch_.lap(StepPhase::kGemm);
  add_rank_rows(n, next_norm);
}

void ForwardRanks::add_rank_rows(std::int32_t n, const float* next_norm) {
  heads_->add_rows(rows_, n, hidden(),
                   {.residual = activations_.residual,
                    .norm_weight = next_norm,
                    .x_next = next_norm == nullptr ? nullptr : activations_.normed,
                    .sums = activations_.sums},
                   launch_.overlapped());
  launch_.lap(StepPhase::kRanks);
}

void ForwardRanks::add_experts(CudaExperts& experts, const CudaLayerWeights& w, std::int32_t n,
                               const float* next_norm) {
  experts.run(w, n,
              {.residual = activations_.residual,
               .partial = rows_,
               .normed = activations_.normed,
               .deferred = next_norm != nullptr},
              next_norm == nullptr ? launch_.serial() : launch_.overlapped());
  launch_.lap(StepPhase::kGemm);
  add_rank_rows(n, next_norm);
}

void ForwardRanks::take_rows(std::int32_t n, const EmbedOutput& out) {
  const std::size_t elements = static_cast<std::size_t>(n) * static_cast<std::size_t>(hidden());
  for (int stage = 0; stage < stages_->ranks().rank(); ++stage)
    stages_->hand_on(rows_, elements, stage, launch_.serial());
  set_bytes(activations_.residual, 0, elements * sizeof(float), launch_.stream);
  add_summed_rows_cuda(rows_, n, hidden(), out, launch_.serial());
}

void ForwardRanks::hand_rows_on(std::int32_t n) {
  if (stages_ == nullptr) return;
  const std::size_t elements = static_cast<std::size_t>(n) * static_cast<std::size_t>(hidden());
  const int mine = stages_->ranks().rank();
  for (int stage = mine; stage + 1 < stages_->ranks().size(); ++stage)
    stages_->hand_on(stage == mine ? activations_.residual : rows_, elements, stage, launch_.serial());
}

void ForwardRanks::share_logits(float* logits, std::int32_t n) {
  const auto rows = static_cast<std::size_t>(n);
  const CudaContext context = launch_.serial();
  if (heads_ != nullptr) {
    heads_->all_gather(rank_logits_, all_rank_logits_, rows * static_cast<std::size_t>(vocab_part_), context);
    join_vocabulary_cuda(all_rank_logits_, n, vocab_part_, static_cast<std::int32_t>(config_.vocab), logits, context);
  }
  if (stages_ != nullptr)
    stages_->broadcast(logits, rows * static_cast<std::size_t>(config_.vocab), stages_->ranks().size() - 1, context);
}

}  // namespace mneme

#include "src/engine/step_batch.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {

void StepBatch::undo() const {
  for (std::size_t i = 0; i < rows.size(); ++i) requests[i]->undo(rows[i].n_rows);
}

void StepBatch::commit() const {
  for (Request* r : requests) {
    if (r->method) r->method->commit(r->cache);
    r->cache.release_behind();
  }
}

namespace {

std::vector<Sample> sample(const StepBatch& batch, const ConstTensorView& logits, std::int64_t vocab,
                           ThreadPool& threads) {
  const std::int64_t n = batch.wanted.size();
  std::vector<Sample> samples(batch.wanted.size());
  if (n == 0) return samples;
  expect_shape("logits", logits, DType::kF32, {n, vocab});
  const auto sample_rows = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::span<const float> row(logits.row_as<float>(i), vocab);
      const StepBatch::Wanted& wanted = batch.wanted[i];
      Sample& s = samples[i];
      Request& r = *wanted.request;
      if (wanted.known()) {
        const std::int32_t next = r.tokens[wanted.predicted];
        s.sampled = {.token = next, .logprob = log_probability(row, next)};
        s.top = top_logprobs(row, r.scores.score_prompt.value_or(0));
      } else if (r.max_tokens > 0) {
        s.sampled = r.sampler.next(row);
        s.top = top_logprobs(row, r.scores.top_logprobs);
      }
    }
  };
  for (std::int64_t i = 0; i < n; ++i) {
    const StepBatch::Wanted& wanted = batch.wanted[i];
    if (wanted.request->scores.on_logits)
      wanted.request->scores.on_logits(wanted.predicted, std::span<const float>(logits.row_as<float>(i), vocab));
  }
  n == 1 ? sample_rows(0, 1, 0) : threads.parallel_for(n, 1, sample_rows);
  return samples;
}

// By logits alone, which are not reported.
bool wants_plain_token(const StepBatch::Wanted& row) {
  const Request& r = *row.request;
  return !row.known() && r.max_tokens > 0 && r.scores.top_logprobs == 0 && !r.scores.on_logits && r.sampler.is_plain();
}

}  // namespace

std::vector<Sample> compute(const StepBatch& batch, ForwardPass& forward, ThreadPool& threads) {
  const bool on_device = forward.samples_on_device() && std::ranges::all_of(batch.wanted, wants_plain_token);
  if (!on_device) return sample(batch, forward.run(batch.input()), forward.vocab(), threads);
  std::vector<const Sampler*> samplers;
  for (const StepBatch::Wanted& row : batch.wanted) samplers.push_back(&row.request->sampler);
  const std::span<const Sampler::SampledToken> sampled_tokens = forward.run_sampling(batch.input(), samplers);
  MNEME_CHECK(sampled_tokens.size() == batch.wanted.size(), "{} tokens for {} rows", sampled_tokens.size(),
              batch.wanted.size());
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < sampled_tokens.size(); ++i) {
    batch.wanted[i].request->sampler.drew(sampled_tokens[i].token);
    samples.push_back({.sampled = sampled_tokens[i], .top = {}});
  }
  return samples;
}

}  // namespace mneme

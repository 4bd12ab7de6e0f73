#include "src/engine/step_batch.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/function_ref.h"

namespace mneme {

void StepBatch::undo() const {
  for (std::size_t i = 0; i < rows.size(); ++i) requests[i]->undo(rows[i].n_rows);
}

void StepBatch::commit(std::span<const Sample> samples) const {
  std::size_t next = 0;
  for (Request* r : requests) {
    std::int32_t rejected = 0;
    for (; next < wanted.size() && wanted[next].request == r; ++next)
      rejected += wanted[next].after_draft() && !samples[next].is_sampled() ? 1 : 0;
    if (rejected > 0) r->cache.truncate(r->cache.length() - rejected);
    if (r->method) r->method->commit(r->cache);
    r->cache.release_behind();
  }
}

namespace {

// The next token, and those behind drafts as long as these are what was sampled; into samples[0], [1], ...
void sample_answer(Request& r, FunctionRef<std::span<const float>(std::size_t)> row_at, Sample* samples) {
  for (std::size_t i = 0;; ++i) {
    Sample& s = samples[i];
    s.draws_before = r.sampler.draws();
    s.sampled = r.sampler.next(row_at(i));
    s.top = top_logprobs(row_at(i), r.scores.top_logprobs);
    if (i == r.drafts.tokens.size() || s.sampled.token != r.drafts.tokens[i] || r.is_end(s.sampled.token)) return;
  }
}

std::vector<Sample> sample(const StepBatch& batch, const ConstTensorView& logits, std::int64_t vocab,
                           ThreadPool& threads) {
  const std::int64_t n = batch.wanted.size();
  std::vector<Sample> samples(batch.wanted.size());
  if (n == 0) return samples;
  expect_shape("logits", logits, DType::kF32, {n, vocab});
  const auto row_at = [&](std::int64_t i) { return std::span<const float>(logits.row_as<float>(i), vocab); };
  const auto sample_rows = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const StepBatch::Wanted& wanted = batch.wanted[i];
      Request& r = *wanted.request;
      if (wanted.known()) {
        const std::int32_t next = r.tokens[wanted.predicted];
        samples[i].sampled = {.token = next, .logprob = log_probability(row_at(i), next)};
        samples[i].top = top_logprobs(row_at(i), r.scores.score_prompt.value_or(0));
      } else if (r.max_tokens > 0 && !wanted.after_draft()) {
        sample_answer(
            r, [&](std::size_t draft) { return row_at(i + draft); }, &samples[i]);
      }
    }
  };
  n == 1 ? sample_rows(0, 1, 0) : threads.parallel_for(n, 1, sample_rows);
  for (std::int64_t i = 0; i < n; ++i) {
    const StepBatch::Wanted& wanted = batch.wanted[i];
    if (wanted.request->scores.on_logits && (!wanted.after_draft() || samples[i].is_sampled()))
      wanted.request->scores.on_logits(wanted.predicted, row_at(i));
  }
  return samples;
}

// By logits alone, which are not reported.
bool wants_plain_token(const StepBatch::Wanted& row) {
  const Request& r = *row.request;
  return !row.known() && r.max_tokens > 0 && r.drafts.tokens.empty() && r.scores.top_logprobs == 0 &&
         !r.scores.on_logits && r.sampler.is_plain();
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

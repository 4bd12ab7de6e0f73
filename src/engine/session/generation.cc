#include "src/engine/session/generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/engine/kv_method.h"

namespace mneme {

Generation::Generation(std::shared_ptr<SharedModel> model, Rules rules)
    : model_(std::move(model)), rules_(std::move(rules)), decoder_(*model_->text->tokenizer), matcher_(rules_.stop) {}

Generation::~Generation() {
  if (!done_) abandon();
}

void Generation::begin(RequestId id) {
  id_ = id;
  model_->loop->listen(id, this);
}

std::optional<Generation::News> Generation::next() {
  const auto take = [&]() -> std::optional<News> {
    std::optional<News> first;
    model_->loop->with_lock([&] {
      if (published_.empty()) return;
      first = std::move(published_.front());
      published_.pop_front();
    });
    return first;
  };
  std::optional<News> news = take();
  if (!news) {
    model_->loop->advance(*this);
    news = take();
  }
  if (!news || !news->last) return news;
  done_ = true;
  const std::lock_guard lock(mutex_);
  if (cancelled_) answer_.stopped = StopReason::kCancelled;
  return news;
}

void Generation::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  model_->loop->exclusive([&](Engine& engine) {
    if (!ended_) engine.stop(id_);
  });
}

void Generation::abandon() {
  if (!id_.valid()) return;
  model_->loop->exclusive([&](Engine& engine) {
    if (ended_) return;
    engine.stop(id_);
    look_at_draws(engine);
    model_->loop->listen(id_, nullptr);
    ended_ = true;
  });
}

void Generation::look_at_draws(const Engine& engine) {
  const Sampler& sampler = engine.sampler(id_);
  if (sampler.draws() > 0) random_ = {.seed = sampler.seed(), .draws = sampler.draws()};
}

void Generation::on_event(Engine& engine, const RequestEvent& event) {
  News news;
  if (answer_.tokens.empty()) news.progress = {.done = event.prompt_done, .total = event.prompt_total};
  if (event.token && !matcher_.matched()) {
    const Sampler::SampledToken& token = *event.token;
    answer_.tokens.push_back(token.token);
    if (rules_.scores) answer_.scores.push_back({.token = token.token, .logprob = token.logprob, .top = event.top});
    news.text = matcher_.push(decoder_.push(token.token));
    // Before the next step: the sequence ends with the token that completed the string.
    if (matcher_.matched() && !event.finished) engine.stop(id_);
  }
  if (event.finished) {
    news.text += matcher_.push(decoder_.finish());
    news.text += matcher_.finish();
    news.last = true;
    end(engine, *event.finished);
  }
  answer_.text += news.text;
  arrived_.push_back(std::move(news));
}

void Generation::publish() {
  std::move(arrived_.begin(), arrived_.end(), std::back_inserter(published_));
  arrived_.clear();
}

void Generation::end(Engine& engine, StopReason reason) {
  answer_.stopped = matcher_.matched() ? StopReason::kStopString : reason;
  const RequestStats stats = engine.stats(id_);
  answer_.stats = {
      .prompt_tokens = stats.prompt_tokens,
      .shared_tokens = stats.shared_tokens,
      .answer_tokens = stats.answer_tokens,
      .prefill_seconds = stats.prefill_seconds,
      .decode_seconds = stats.decode_seconds,
      .decode_steps = std::max<std::int64_t>(stats.answer_tokens - (answer_.stopped == StopReason::kEnd ? 0 : 1), 0),
      .kv_bytes = static_cast<std::int64_t>(engine.kv_bytes(id_)),
      .method = {}};
  if (const MethodStats* method = engine.method_stats(id_); method != nullptr && rules_.plan != nullptr)
    answer_.stats.method = kv_method_stats(*method, *rules_.plan, engine.method_bytes(id_), engine.pool());
  else
    answer_.stats.method = full_attention_stats(engine.method_shape(), stats.prompt_tokens + stats.shared_tokens,
                                                answer_.stats.decode_steps);
  look_at_draws(engine);
  model_->loop->listen(id_, nullptr);
  ended_ = true;
}

}  // namespace mneme

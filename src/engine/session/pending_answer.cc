#include "src/engine/session/pending_answer.h"

#include <iterator>
#include <utility>

namespace mneme {

PendingAnswer::PendingAnswer(std::shared_ptr<SharedModel> model, Rules rules)
    : model_(std::move(model)), scores_(rules.scores), stream_(*model_->text->tokenizer, std::move(rules.stop)) {}

PendingAnswer::~PendingAnswer() {
  if (!done_) abandon();
}

void PendingAnswer::begin(RequestId id) {
  id_ = id;
  model_->loop->listen(id, this);
}

std::optional<PendingAnswer::News> PendingAnswer::next() {
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
  if (!news || !news->piece.end) return news;
  done_ = true;
  const std::lock_guard lock(mutex_);
  if (cancelled_) answer_.stopped = StopReason::kCancelled;
  return news;
}

void PendingAnswer::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  model_->loop->exclusive([&](Engine& engine) {
    if (!ended_) engine.stop(id_);
  });
}

void PendingAnswer::abandon() {
  if (!id_.valid()) return;
  model_->loop->exclusive([&](Engine& engine) {
    if (ended_) return;
    engine.stop(id_);
    end(engine);
  });
}

void PendingAnswer::end(const Engine& engine) {
  const Sampler& sampler = engine.sampler(id_);
  if (sampler.draws() > 0) random_ = {.seed = sampler.seed(), .draws = sampler.draws()};
  model_->loop->listen(id_, nullptr);
  ended_ = true;
}

void PendingAnswer::on_event(Engine& engine, const RequestEvent& event) {
  News news;
  if (answer_.tokens.empty()) news.progress = {.done = event.prompt_done, .total = event.prompt_total};
  if (event.token) {
    const Sampler::SampledToken& token = *event.token;
    answer_.tokens.push_back(token.token);
    if (scores_) answer_.scores.push_back({.token = token.token, .logprob = token.logprob, .top = event.top});
  }
  news.piece = stream_.take(engine, event);
  answer_.text += news.piece.text;
  if (news.piece.end) {
    answer_.stopped = news.piece.end->reason;
    answer_.stats = news.piece.end->stats;
    end(engine);
  }
  arrived_.push_back(std::move(news));
}

void PendingAnswer::publish() {
  std::move(arrived_.begin(), arrived_.end(), std::back_inserter(published_));
  arrived_.clear();
}

}  // namespace mneme

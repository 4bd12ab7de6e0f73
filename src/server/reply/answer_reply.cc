#include "src/server/reply/answer_reply.h"

#include <iterator>
#include <utility>

#include "src/base/check.h"

namespace mneme::server {

AnswerReply::AnswerReply(Setting setting, CompletionRequest request, std::shared_ptr<ResponseWriter> writer)
    : Reply(std::move(setting), std::move(request.inputs), std::move(writer)),
      stream_(request.stream),
      tells_cached_(inputs().front().report_progress),
      record_(std::move(request.record)),
      prompt_tokens_(std::ssize(inputs().front().prompt)) {
  MNEME_CHECK(n_prompts() == 1 && n() == 1, "{} prompts, {} answers", n_prompts(), n());
  if (request.reading != nullptr)
    parts_ = std::make_unique<ChatAnswer>(request.reading, *this->setting().text.tokenizer, this->setting().request_id);
}

std::vector<ChatAnswer::Piece> AnswerReply::pieces_of(AnswerPiece& piece) {
  if (parts_ != nullptr) return parts_->take(piece.text, piece.tokens);
  if (piece.text.empty() && piece.tokens.empty()) return {};
  std::vector<ChatAnswer::Piece> pieces(1);
  pieces.front() = {.event = {.part = AnswerPart::kText, .text = std::move(piece.text), .id = {}},
                    .tokens = std::move(piece.tokens)};
  return pieces;
}

std::string AnswerReply::heartbeat() {
  return std::exchange(begun_, true) ? waiting_events() : first_events();
}

void AnswerReply::take(std::size_t, GenerationEvent event) {
  if (event.accepted && stream_ && !streaming()) {
    begin_stream([weak = weak_from_this()]() -> std::string {
      const auto self = std::static_pointer_cast<AnswerReply>(weak.lock());
      return self == nullptr ? "" : self->heartbeat();
    });
  }
  if (event.progress) cached_tokens_ = event.progress->cached;
  if (event.prompt) cached_tokens_ = event.prompt->cached_tokens;
  const bool knows_cached = event.progress || event.prompt || event.piece.end;
  if (streaming() && !begun_ && (knows_cached || !tells_cached_)) {
    begun_ = true;
    write(first_events());
  }
  record_.take(event.piece);
  std::vector<AnswerItems::Change> changes;
  for (ChatAnswer::Piece& piece : pieces_of(event.piece)) items_.take(std::move(piece), changes);
  if (event.piece.end) {
    end_ = std::move(event.piece.end);
    std::vector<ChatAnswer::Piece> last;
    if (parts_ != nullptr) last = parts_->finish();
    items_.finish(std::move(last), end_->reason == StopReason::kLength, changes);
    on_end();
  }
  if (!stream_) {
    if (end_) respond(object());
    return;
  }
  std::string events;
  for (const AnswerItems::Change& change : changes) events += change_events(change);
  if (end_) events += last_events();
  if (end_) return end_stream(std::move(events));
  if (!events.empty()) write(std::move(events));
}

AnswerReply::Usage AnswerReply::usage() const {
  Usage u{.prompt = prompt_tokens_, .cached = cached_tokens_};
  if (end_) u.answer = end_->stats.answer_tokens;
  if (parts_ != nullptr) u.thought = parts_->thought_tokens();
  return u;
}

}  // namespace mneme::server

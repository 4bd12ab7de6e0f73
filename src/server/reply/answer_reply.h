// The one answer to a conversation, as items: collected into one object, or streamed as events. What Responses and
// Messages share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/server/api/api_request.h"
#include "src/server/reply/answer_items.h"
#include "src/server/reply/reply.h"

namespace mneme::server {

class AnswerReply : public Reply {
 protected:
  // Requires  `request` has one input with n = 1.
  AnswerReply(Setting setting, CompletionRequest request, std::shared_ptr<ResponseWriter> writer);

  // ---- events, in this order; each is empty where there is nothing to say
  // Where the request reports progress: once the cached tokens are known, or with the first heartbeat before that.
  virtual std::string first_events() = 0;
  virtual std::string waiting_events() = 0;  // now and then until the next event
  virtual std::string change_events(const AnswerItems::Change& change) = 0;
  virtual std::string last_events() = 0;
  // The whole answer.
  virtual OrderedJson object() = 0;
  // The answer is complete, before it is written.
  virtual void on_end() {}

  struct Usage {
    std::int64_t prompt = 0, cached = 0, answer = 0, thought = 0;  // tokens; cached ones are among the prompt's
  };
  Usage usage() const;
  const std::vector<AnswerItem>& items() const { return items_.items(); }
  bool has_calls() const { return items_.has_calls(); }
  // Requires  the answer has ended.
  const AnswerSummary& summary() const { return *end_; }
  bool ended() const { return end_.has_value(); }

 private:
  void take(std::size_t prompt, GenerationEvent event) final;
  std::vector<ChatAnswer::Piece> pieces_of(AnswerPiece& piece);
  std::string heartbeat();

  bool stream_, tells_cached_;
  AnswerRecord record_;
  std::int64_t prompt_tokens_;
  std::unique_ptr<ChatAnswer> parts_;  // null: the answer is its text
  AnswerItems items_;
  std::int64_t cached_tokens_ = 0;
  bool begun_ = false;  // first_events() were written
  std::optional<AnswerSummary> end_;
};

}  // namespace mneme::server

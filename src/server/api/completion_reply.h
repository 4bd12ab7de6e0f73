// One completion or chat request on its way back: collects the events of its generations into one JSON object, or streams
// it as server-sent events.
//
// Threads  the I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/loop/engine_loop.h"
#include "src/server/answer/chat_answer.h"
#include "src/server/api/api_request.h"
#include "src/server/api/completion_json.h"
#include "src/server/api/key_use.h"
#include "src/server/http/http.h"

namespace mneme::server {

class ApiError;

class CompletionReply : public std::enable_shared_from_this<CompletionReply> {
 public:
  struct Setting {
    const TextSide& text;
    EngineLoop& loop;
    std::string model, method, request_id;
    std::shared_ptr<KeyUse> key;               // null: one without limits
    std::function<std::string()> retry_after;  // seconds, for 429
    std::string thought_field;                 // of a chat's messages and deltas
  };
  CompletionReply(Setting setting, CompletionRequest request, std::shared_ptr<ResponseWriter> writer);

  // Hands the prompts to the engine. Nothing is computed when there is no room for all of them.
  void start();

 private:
  class Sink;
  struct Choice {
    AnswerPiece answer;                 // so far; of a stream its end alone
    std::unique_ptr<ChatAnswer> parts;  // null: the answer is its text
    std::size_t characters = 0;         // of text so far, echo included; where the next token's text begins
    bool begun = false;                 // its role was streamed
  };
  struct Prompt {
    std::vector<TokenId> tokens;  // kept where the answer repeats them
    std::optional<PromptSummary> summary;
  };

  void on_event(std::size_t prompt, GenerationEvent event);
  void on_close();
  void refuse(const ApiError& error);
  void fail(const Failure& failure);
  void cancel_all();
  void begin_stream();
  void stream_progress(std::size_t prompt, const PromptProgress& progress);
  void stream_piece(std::size_t choice, const AnswerPiece& piece);
  std::string text_chunk(std::size_t choice, const AnswerPiece& piece, std::string_view more);
  std::string answer_chunks(std::size_t choice, const AnswerPiece& piece, std::string_view more);
  void finish();
  void close();

  std::pair<std::string, std::string> queue_header() const;
  OrderedJson head() const;
  std::string chunk(std::size_t choice, std::string_view delta, std::string_view logprobs, std::string_view more) const;
  OrderedJson logprobs_of(Choice& choice, std::span<const TokenScore> tokens) const;
  OrderedJson echo_logprobs(std::size_t prompt, Choice& choice) const;
  OrderedJson usage() const;
  static std::string_view finish_of(const Choice& choice, StopReason reason);
  OrderedJson choice_json(std::size_t choice);
  std::string echoed(std::size_t prompt) const;

  Setting setting_;
  CompletionRequest request_;
  std::shared_ptr<ResponseWriter> writer_;
  std::string id_;
  std::int64_t created_ = 0;
  std::vector<GenerationId> generations_;
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;  // prompt after prompt
  std::string chunk_head_;
  std::size_t open_ = 0;
  std::int64_t leased_ = 0;          // of the key's answers in flight
  std::int32_t queue_position_ = 0;  // of the first prompt, when it was accepted
  bool streaming_ = false, closed_ = false;
};

}  // namespace mneme::server

// One completion or chat request on its way back: collects the events of its generations into one JSON object, or streams
// it as server-sent events.
//
// Threads  the I/O thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/server/answer/chat_answer.h"
#include "src/server/api/api_request.h"
#include "src/server/api/completion_json.h"
#include "src/server/reply/reply.h"

namespace mneme::server {

class CompletionReply final : public Reply {
 public:
  CompletionReply(Setting setting, CompletionRequest request, std::shared_ptr<ResponseWriter> writer);

 private:
  struct Choice {
    AnswerPiece answer;  // so far; of a stream its end alone
    AnswerRecord record;
    std::unique_ptr<ChatAnswer> parts;  // null: the answer is its text
    std::size_t characters = 0;         // of text so far, echo included; where the next token's text begins
    bool begun = false;                 // its role was streamed
  };
  struct Prompt {
    std::vector<TokenId> tokens;  // kept where the answer repeats them
    std::optional<PromptSummary> summary;
  };

  void take(std::size_t prompt, GenerationEvent event) override;
  void stream_progress(std::size_t prompt, const PromptProgress& progress);
  void stream_piece(std::size_t choice, const AnswerPiece& piece);
  std::string text_chunk(std::size_t choice, const AnswerPiece& piece, std::string_view more);
  std::string answer_chunks(std::size_t choice, const AnswerPiece& piece, std::string_view more);
  void finish();

  OrderedJson head() const;
  std::string chunk(std::size_t choice, std::string_view delta, std::string_view logprobs, std::string_view more) const;
  OrderedJson logprobs_of(Choice& choice, std::span<const TokenScore> tokens) const;
  OrderedJson echo_logprobs(std::size_t prompt, Choice& choice) const;
  OrderedJson usage() const;
  static std::string_view finish_of(const Choice& choice, StopReason reason);
  OrderedJson choice_json(std::size_t choice);
  std::string echoed(std::size_t prompt) const;

  CompletionRequest request_;
  std::string id_;
  std::vector<Prompt> prompts_;
  std::vector<Choice> choices_;  // prompt after prompt
  std::string chunk_head_;
  std::size_t open_ = 0;
};

}  // namespace mneme::server

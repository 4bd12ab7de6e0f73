// One answer of a chat to its thought, text and calls, from the events of its generation.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/loop/generation.h"
#include "src/text/answer/answer_parser.h"

namespace mneme::server {

// How a request's answers are read.
struct AnswerReading : AnswerScope {
  std::set<std::string> known_ids;  // of calls in the conversation
};

class ChatAnswer {
 public:
  // `id`: of the answer; ids of its calls are made of it.
  ChatAnswer(std::shared_ptr<const AnswerReading> how, const Tokenizer& tokenizer, std::string id);

  struct Piece {
    AnswerEvent event;               // of a call's beginning: with its id
    std::vector<TokenScore> tokens;  // kText: whose text begins in it
  };
  // What an event of the generation adds. `text` is the next piece of the answer, `tokens` those that begin in it,
  // special ones among them.
  std::vector<Piece> take(std::string_view text, const std::vector<TokenScore>& tokens);
  std::vector<Piece> finish();

  // Parts of the whole answer so far, for an answer that is not streamed.
  struct Call {
    std::string id, name, arguments;
  };
  const std::string& thought() const { return thought_; }
  const std::string& text() const { return text_; }
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<TokenScore>& text_tokens() const { return text_tokens_; }
  std::int64_t thought_tokens() const { return thought_tokens_; }  // special ones not among them

 private:
  void feed(std::string_view bytes, std::vector<AnswerEvent>& events);
  std::vector<Piece> pieces_of(std::vector<AnswerEvent> events);
  void collect(const Piece& piece);
  std::string call_id(const AnswerEvent& begin) const;

  struct Placed {
    TokenScore token;
    std::size_t at;  // bytes of the answer before it
  };
  std::shared_ptr<const AnswerReading> how_;
  const Tokenizer& tokenizer_;
  std::string id_;
  std::unique_ptr<AnswerParser> parser_;
  StreamDecoder decoder_;
  std::size_t decoded_ = 0;  // bytes of text that the tokens so far make
  std::size_t given_ = 0;    // bytes of text so far
  std::size_t fed_ = 0;      // bytes of the answer, special tokens included
  std::deque<Placed> tokens_;
  std::string thought_, text_;
  std::vector<Call> calls_;
  std::vector<TokenScore> text_tokens_;
  std::int64_t thought_tokens_ = 0;
};

}  // namespace mneme::server

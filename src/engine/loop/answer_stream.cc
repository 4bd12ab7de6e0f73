#include "src/engine/loop/answer_stream.h"

#include <utility>

namespace mneme {

AnswerStream::AnswerStream(const Tokenizer& tokenizer, std::vector<std::string> stop, bool keep_stop)
    : decoder_(tokenizer), matcher_(std::move(stop), keep_stop) {}

AnswerStream::Piece AnswerStream::push(OutputToken token) {
  const TokenId id = token.id;
  held_.push_back({std::move(token), decoded_});
  const std::string text = decoder_.push(id);
  decoded_ += text.size();
  return give_out(matcher_.push(text), false);
}

AnswerStream::Piece AnswerStream::finish() {
  std::string text = matcher_.push(decoder_.finish());
  text += matcher_.finish();
  return give_out(std::move(text), !matcher_.matched());
}

AnswerStream::Piece AnswerStream::give_out(std::string text, bool last) {
  Piece piece{.text = std::move(text), .tokens = {}};
  given_ += piece.text.size();
  while (!held_.empty() && (last || held_.front().begin < given_)) {
    piece.tokens.push_back(std::move(held_.front().token));
    held_.pop_front();
  }
  return piece;
}

}  // namespace mneme

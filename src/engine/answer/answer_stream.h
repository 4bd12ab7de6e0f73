// Tokens of one answer to text: whole characters, nothing of a stop string, and every token with the piece that its
// text begins in.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "src/engine/answer/answer_piece.h"
#include "src/engine/answer/scoped_stops.h"
#include "src/engine/engine.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

class AnswerStream {
 public:
  // keep_stop: a stop string that ends the answer is part of it. scope: as StopRules::scope.
  AnswerStream(const Tokenizer& tokenizer, std::vector<std::string> stop, bool keep_stop = false,
               std::shared_ptr<const AnswerScope> scope = nullptr);

  // What a step's event adds; with the last piece, why the answer ended and what it took. A stop string that is complete
  // ends the request too, so that its sequence ends with the token that completed the string.
  //
  // Requires  `event` is of the answer's request, and no piece before had an end.
  AnswerPiece take(Engine& engine, const RequestEvent& event);

  // The same of a token alone.
  AnswerPiece push(TokenScore token);
  // What is left. Tokens whose text is a stop string's or comes after it are not told.
  AnswerPiece finish();
  bool stopped() const { return stops_.matched(); }

 private:
  AnswerPiece give_out(std::string text, bool last);

  struct Held {
    TokenScore token;
    std::size_t begin;  // bytes of text before its own
  };
  StreamDecoder decoder_;
  ScopedStops stops_;
  std::deque<Held> held_;
  std::size_t decoded_ = 0, given_ = 0;  // bytes
};

}  // namespace mneme

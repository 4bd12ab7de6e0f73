// Tokens of one answer to text: whole characters, nothing of a stop string, and every token with the piece that its
// text begins in.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "src/engine/loop/generation.h"
#include "src/engine/session/stop_matcher.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

class AnswerStream {
 public:
  // keep_stop: a stop string that ends the answer is part of it.
  AnswerStream(const Tokenizer& tokenizer, std::vector<std::string> stop, bool keep_stop = false);

  struct Piece {
    std::string text;
    std::vector<OutputToken> tokens;
  };
  Piece push(OutputToken token);
  // What is left. Tokens whose text is a stop string's or comes after it are not told.
  Piece finish();
  bool stopped() const { return matcher_.matched(); }

 private:
  Piece give_out(std::string text, bool last);

  struct Held {
    OutputToken token;
    std::size_t begin;  // bytes of text before its own
  };
  StreamDecoder decoder_;
  StopMatcher matcher_;
  std::deque<Held> held_;
  std::size_t decoded_ = 0, given_ = 0;  // bytes
};

}  // namespace mneme

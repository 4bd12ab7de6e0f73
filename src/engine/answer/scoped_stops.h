// Stop strings in the text of an answer, not in its thoughts and calls.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/answer/stop_matcher.h"
#include "src/text/answer/answer_parser.h"

namespace mneme {

class ScopedStops {
 public:
  // As StopMatcher's. scope: how the answer is read; null: all of it is its text.
  ScopedStops(std::vector<std::string> stop, bool keep, std::shared_ptr<const AnswerScope> scope);

  // What of the answer may be given out now that `text` follows, marks, thoughts and calls included. After a match
  // nothing more comes.
  std::string push(std::string_view text);
  // A special token that is a mark of the answer's parts.
  bool is_mark(TokenId token) const;
  // A token comes next; of special ones the parser sees their marks.
  std::string push_special(TokenId token);
  std::string finish();
  bool matched() const { return matcher_.matched(); }
  const std::string& matched_string() const { return matcher_.matched_string(); }  // empty: none

 private:
  std::string feed(std::string_view bytes);
  std::string take(const std::vector<AnswerEvent>& events);
  std::string text_up_to(std::size_t end);

  StopMatcher matcher_;
  std::shared_ptr<const AnswerScope> scope_;
  std::unique_ptr<AnswerParser> parser_;  // null: all is text
  std::string bytes_;                     // that no event has told of yet, special tokens among them
  std::size_t told_ = 0;                  // bytes of the answer before them
};

}  // namespace mneme

// The formats of a model's answers, by chat template.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "src/engine/session/running_model.h"
#include "src/text/answer/answer_parser.h"
#include "src/text/answer/find_format.h"

namespace mneme::server {

// Threads  any.
class AnswerFormats {
 public:
  // option: ServerOptions::answer_format.
  //
  // Requires  `text` outlives the object. Errors  as find_answer_format().
  AnswerFormats(std::string option, const TextSide& text);

  struct Format {
    std::shared_ptr<const AnswerMarks> marks;
    std::string how;
  };
  // Of this template; null: turns are framed by hand.
  Format of(const ChatTemplate* used) const;

 private:
  std::string option_;
  const TextSide& text_;
  mutable std::mutex mutex_;
  mutable std::map<const ChatTemplate*, Format> found_;
};

}  // namespace mneme::server

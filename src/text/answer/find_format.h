// Which format the answers of a model have.
#pragma once

#include <string>
#include <string_view>

#include "src/text/answer/answer_format.h"
#include "src/text/chat/chat_template.h"

namespace mneme {

struct FoundFormat {
  AnswerFormat format;  // named "plain" where nothing is known
  std::string how;      // "option", "response_template", "known", "derived", "none"
};

// In this order: what `option` says, what the checkpoint says (TokenizerData::response_template), a known format whose
// marks the template writes, what the template shows when it renders calls.
//
//   option  empty: find it; "none": plain text; the name of a known format; a format as JSON
//   used    the chat template; null: turns are framed by hand
//
// Errors  kOption: no such name. kFormat: as answer_format_of().
FoundFormat find_answer_format(std::string_view option, const ChatTemplate* used, const Tokenizer& tokenizer);

}  // namespace mneme

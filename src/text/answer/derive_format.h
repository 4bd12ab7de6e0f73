// The format of a model's answers, read off its chat template: conversations with words that the template does not
// contain show what it writes around the parts of a call and of a thought.
#pragma once

#include <optional>

#include "src/text/answer/answer_format.h"
#include "src/text/chat/chat_template.h"

namespace mneme {

// Nothing where the template shows neither calls nor thoughts, or writes them in a way that no form of calls has.
std::optional<AnswerFormat> derived_format(const ChatTemplate& used, const Tokenizer& tokenizer);

}  // namespace mneme

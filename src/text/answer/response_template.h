// The answer format of a checkpoint's "response_template" (transformers 5, tokenizer_config.json).
#pragma once

#include <optional>
#include <string_view>

#include "src/text/answer/answer_format.h"

namespace mneme {

// Nothing where the text is no such template, or asks for what no format has: regular expressions, unknown fields.
//
//   fields   "reasoning_content" or "thinking" with "open" and "close"; "content", with or without them; "tool_calls"
//            with "open", and content "json" or "python-call-list"
std::optional<AnswerFormat> format_of_response_template(std::string_view json);

}  // namespace mneme

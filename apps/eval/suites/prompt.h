// Prompts from templates.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace mneme::eval {

struct Prompt {
  std::string text;
  std::size_t question_bytes = 0;  // what follows the document; all of it where there is no document
};

// Replaces every {field} by value(field); "{{" and "}}" are braces. The document is the field `document`.
//
// Errors  kOption: a brace that does not close. What `value` throws.
Prompt fill_template(std::string_view text, std::string_view document,
                     const std::function<std::string(std::string_view)>& value);

}  // namespace mneme::eval

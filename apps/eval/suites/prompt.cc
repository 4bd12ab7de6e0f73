#include "apps/eval/suites/prompt.h"

#include "src/base/error.h"

namespace mneme::eval {

Prompt fill_template(std::string_view text, std::string_view document,
                     const std::function<std::string(std::string_view)>& value) {
  Prompt p;
  std::size_t document_end = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((text[i] == '{' || text[i] == '}') && i + 1 < text.size() && text[i + 1] == text[i]) {
      p.text += text[i++];
    } else if (text[i] != '{') {
      p.text += text[i];
    } else {
      const std::size_t end = text.find('}', i);
      if (end == std::string_view::npos)
        fail(ErrorKind::kOption, "template: expected '}}' behind '{}', found the end", text.substr(i, 20));
      const std::string_view field = text.substr(i + 1, end - i - 1);
      p.text += value(field);
      if (field == document) document_end = p.text.size();
      i = end;
    }
  }
  p.question_bytes = p.text.size() - document_end;
  return p;
}

}  // namespace mneme::eval

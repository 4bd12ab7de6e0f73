#include "src/server/answer/answer_formats.h"

#include <utility>

namespace mneme::server {

AnswerFormats::AnswerFormats(std::string option, const TextSide& text) : option_(std::move(option)), text_(text) {
  static_cast<void>(of(text.chat.chat_template()));  // a wrong option is told at once
}

AnswerFormats::Format AnswerFormats::of(const ChatTemplate* used) const {
  const std::lock_guard lock(mutex_);
  const auto known = found_.find(used);
  if (known != found_.end()) return known->second;
  FoundFormat found = find_answer_format(option_, used, *text_.tokenizer);
  const Format format{std::make_shared<const AnswerMarks>(std::move(found.format), *text_.tokenizer),
                      std::move(found.how)};
  found_.emplace(used, format);
  return format;
}

}  // namespace mneme::server

#include "src/text/answer_grammar/step_builder.h"

#include "src/text/answer/mark.h"

namespace mneme {

StepId StepBuilder::text(std::string_view bytes, StepId next) {
  if (bytes.empty()) return next;
  return add({.kind = AnswerStep::Kind::kText, .next = next, .text = std::string(bytes)});
}

StepId StepBuilder::mark(std::string_view bytes, StepId next) {
  while (!bytes.empty()) {
    std::size_t begin = bytes.size();
    while (begin > 0 && !is_white(bytes[begin - 1])) --begin;
    next = text(bytes.substr(begin), next);
    bytes = bytes.substr(0, begin);
    if (bytes.empty()) break;
    next = white(next);
    while (!bytes.empty() && is_white(bytes.back())) bytes.remove_suffix(1);
  }
  return next;
}

StepId StepBuilder::word(std::uint32_t least, std::uint32_t most, std::string more, StepId next) {
  return add({.kind = AnswerStep::Kind::kWord, .next = next, .text = std::move(more), .least = least, .most = most});
}

}  // namespace mneme

#include "src/text/answer/find_format.h"

#include <fmt/ranges.h>

#include "src/base/error.h"
#include "src/text/answer/derive_format.h"
#include "src/text/answer/response_template.h"

namespace mneme {
namespace {

AnswerFormat plain() {
  AnswerFormat format;
  format.name = "plain";
  return format;
}

AnswerFormat named(std::string_view option) {
  if (option == "none") return plain();
  if (option.starts_with('{')) {
    const auto json = nlohmann::ordered_json::parse(option, nullptr, false);
    if (json.is_discarded()) fail(ErrorKind::kFormat, "answer format: expected JSON");
    return answer_format_of(json);
  }
  const AnswerFormat* const known = known_answer_format(option);
  if (known == nullptr)
    fail(ErrorKind::kOption, "answer format \"{}\": expected none, a file with a format, or one of {}",
         option.substr(0, 60), fmt::join(known_answer_formats(), ", "));
  return *known;
}

}  // namespace

FoundFormat find_answer_format(std::string_view option, const ChatTemplate* used, const Tokenizer& tokenizer) {
  if (!option.empty()) return {named(option), "option"};
  if (auto format = format_of_response_template(tokenizer.data().response_template))
    return {*std::move(format), "response_template"};
  if (used == nullptr) return {plain(), "none"};
  if (auto format = known_format_of(used->source())) return {*std::move(format), "known"};
  if (auto format = derived_format(*used, tokenizer)) return {*std::move(format), "derived"};
  return {plain(), "none"};
}

}  // namespace mneme

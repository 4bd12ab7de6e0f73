// Answers of gpt-oss: messages with a channel and maybe a recipient.
//
// analysis is thought; a recipient makes the message a call of it; all else is text.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "src/text/answer/answer_parser.h"

namespace mneme {

class HarmonyParser final : public AnswerParser {
 public:
  // The tokens that frame messages.
  static constexpr std::string_view kTokens =
      "<|start|> <|channel|> <|constrain|> <|message|> <|end|> <|call|> <|return|>";

  HarmonyParser(const AnswerMarks& marks, const Setting& setting);

 private:
  enum class Where : std::uint8_t { kFirst, kHeader, kBody };
  bool advance(bool last) override;
  void end() override;
  bool read_first(bool last);
  bool read_header(bool last);
  bool read_body(bool last);
  void begin_body();
  void give(std::string_view text);
  void end_body();
  Found match_any(std::string_view text, bool last, std::size_t& length, bool& starts) const;

  const AnswerTools* tools_;
  std::string start_, channel_, message_;
  std::array<std::string, 3> ends_;  // of a message
  std::string header_;
  Where where_ = Where::kFirst;
  AnswerPart part_ = AnswerPart::kText;  // of the message; kArguments: a call
};

}  // namespace mneme

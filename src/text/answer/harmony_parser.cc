#include "src/text/answer/harmony_parser.h"

namespace mneme {
namespace {

constexpr std::size_t kLongestHeader = 1024;

std::string_view word_behind(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + mark.size());
  return text.substr(0, text.find_first_of(" \n\t<"));
}

}  // namespace

HarmonyParser::HarmonyParser(const AnswerMarks& marks, const Setting& setting)
    : tools_(setting.tools),
      start_(marks.mark_of("<|start|>")),
      channel_(marks.mark_of("<|channel|>")),
      message_(marks.mark_of("<|message|>")),
      ends_{marks.mark_of("<|end|>"), marks.mark_of("<|call|>"), marks.mark_of("<|return|>")} {}

bool HarmonyParser::advance(bool last) {
  if (where_ == Where::kFirst) return read_first(last);
  return where_ == Where::kHeader ? read_header(last) : read_body(last);
}

// The prompt ends within a header. An answer that goes on with none is text.
bool HarmonyParser::read_first(bool last) {
  bool partly = false;
  for (const std::string_view mark : {std::string_view(channel_), std::string_view(start_), std::string_view(message_),
                                      std::string_view(" to="), std::string_view("to=")}) {
    const std::string_view text = rest();
    if (text.starts_with(mark)) {
      where_ = Where::kHeader;
      return true;
    }
    partly = partly || mark.starts_with(text);
  }
  if (partly && !last) return false;
  part_ = AnswerPart::kText;
  where_ = Where::kBody;
  return true;
}

bool HarmonyParser::read_header(bool last) {
  const auto [found, length] = match_mark(message_, rest(), last);
  if (found == Found::kPartly) return false;
  if (found == Found::kWhole) {
    consume(length);
    begin_body();
    return true;
  }
  header_ += rest()[0];
  consume(1);
  if (header_.size() < kLongestHeader) return true;
  // No header is so long.
  emit(AnswerPart::kText, header_);
  header_.clear();
  part_ = AnswerPart::kText;
  where_ = Where::kBody;
  return true;
}

void HarmonyParser::begin_body() {
  const std::string header = spelled(header_);
  header_.clear();
  where_ = Where::kBody;
  std::string_view recipient = word_behind(header, "to=");
  const std::string_view channel = word_behind(header, "<|channel|>");
  constexpr std::string_view kFunctions = "functions.";
  const bool function = recipient.starts_with(kFunctions);
  if (function) recipient.remove_prefix(kFunctions.size());
  const bool call = tools_ != nullptr && !recipient.empty() && (function || tools_->contains(std::string(recipient)));
  part_ = call ? AnswerPart::kArguments : channel == "analysis" ? AnswerPart::kThought : AnswerPart::kText;
  if (call) begin_call(std::string(recipient), {});
}

void HarmonyParser::give(std::string_view text) {
  if (part_ == AnswerPart::kArguments) {
    add_arguments(text);
  } else {
    emit(part_, text);
  }
}

void HarmonyParser::end_body() {
  if (part_ == AnswerPart::kArguments) end_call();
  part_ = AnswerPart::kText;
  where_ = Where::kHeader;
}

// What ends a message. `starts`: it is part of the next one's header.
Found HarmonyParser::match_any(std::string_view text, bool last, std::size_t& length, bool& starts) const {
  Found found = Found::kNo;
  const auto look = [&](std::string_view mark, bool header) {
    const MarkMatch match = match_mark(mark, text, last);
    if (match.found == Found::kNo || found == Found::kWhole) return;
    found = match.found;
    length = match.length;
    starts = header;
  };
  for (const std::string& mark : ends_) look(mark, false);
  look(start_, true);
  look(channel_, true);
  return found;
}

bool HarmonyParser::read_body(bool last) {
  const std::string_view text = rest();
  const std::size_t mark = text.find_first_of("<\xFE");
  if (mark != 0) {
    const std::size_t n = std::min(mark, text.size());
    consume(n);
    give(text.substr(0, n));
    return true;
  }
  std::size_t length = 0;
  bool starts = false;
  const Found found = match_any(text, last, length, starts);
  if (found == Found::kPartly) return false;
  if (found == Found::kWhole) {
    if (!starts) consume(length);
    end_body();
  } else {
    consume(1);
    give(text.substr(0, 1));
  }
  return true;
}

void HarmonyParser::end() {
  const std::string_view header = header_;
  if (where_ == Where::kBody) return end_body();
  // A header without a message, unless it is the beginning of one that was cut.
  if (!header.starts_with(start_) && !header.starts_with(channel_)) emit(AnswerPart::kText, header);
}

}  // namespace mneme

#include "src/text/answer/marked_parser.h"

#include <algorithm>

namespace mneme {
namespace {

bool is_token(std::string_view mark) {
  return mark.starts_with(kTokenBegin);
}

}  // namespace

MarkedParser::MarkedParser(const AnswerFormat& format, const Setting& setting)
    : format_(format), tools_(setting.tools) {
  const bool always_thinks = format.thought_open.empty() && !format.thought_close.empty();
  if (setting.in_thought || always_thinks) state_ = State::kThought;
  list_openers();
}

void MarkedParser::list_openers() {
  const auto add = [this](std::string_view mark, Opens opens) {
    if (mark.empty()) return;
    openers_.push_back({mark, opens});
    may_open_[byte_index(mark[0])] = true;
  };
  add(format_.thought_open, Opens::kThought);
  add(format_.thought_close, Opens::kThoughtEnd);
  for (const std::string& mark : format_.framing) add(mark, Opens::kNothing);
  if (tools_ == nullptr || !format_.reads_calls()) return;
  add(format_.call.section_open, Opens::kSection);
  add(format_.call.open, Opens::kCall);
  add(format_.call.section_close, Opens::kLeftOver);
  add(format_.call.close, Opens::kLeftOver);
  if (format_.bare_calls) may_open_[byte_index(format_.calls == CallForm::kObject ? '{' : '[')] = true;
}

bool MarkedParser::advance(bool last) {
  switch (state_) {
    case State::kText:
    case State::kThought:
      return read_prose(last);
    case State::kSection:
      return read_section(last);
    case State::kId:
      return read_id(last);
    case State::kName:
      return read_name(last);
    case State::kNameTail:
      return read_name_tail(last);
    case State::kArguments:
      return read_arguments(last);
    case State::kClose:
      return read_close(last);
    case State::kObject:
      return read_object(last);
  }
  return false;
}

// ---- text and thought

bool MarkedParser::applies(const Opener& opener) const {
  const bool thinks = state_ == State::kThought;
  switch (opener.opens) {
    case Opens::kThought:  // within a thought: the prompt had it
      return thinks ? !thought_begun_ : !text_here_ || is_token(opener.mark);
    case Opens::kThoughtEnd:
      return thinks || !text_here_ || is_token(opener.mark);
    case Opens::kSection:
    case Opens::kCall:
      return !thinks || format_.call_ends_thought;
    case Opens::kLeftOver:
      return !thinks && behind_call_ && !text_here_;
    case Opens::kNothing:
      return !thinks;
  }
  return false;
}

void MarkedParser::open(const Opener& opener, std::size_t length) {
  const bool thinks = state_ == State::kThought;
  if (opener.opens == Opens::kSection || opener.opens == Opens::kCall) {
    in_section_ = opener.opens == Opens::kSection;
    return open_candidate(in_section_ ? State::kSection : first_of_call(), length);
  }
  consume(length);
  if (opener.opens == Opens::kThought && !thinks) open_thought();
  if (opener.opens == Opens::kThoughtEnd && thinks) close_thought();
}

bool MarkedParser::opens_bare(char c) const {
  return format_.bare_calls && tools_ != nullptr && state_ == State::kText && !has_text_ && !has_calls() &&
         c == (format_.calls == CallForm::kObject ? '{' : '[');
}

bool MarkedParser::read_prose(bool last) {
  const std::string_view text = rest();
  std::size_t n = 0;
  if (is_white(text[0])) {
    while (n < text.size() && is_white(text[n])) ++n;
    white_ += text.substr(0, n);
    consume(n);
    return true;
  }
  if (may_open_[byte_index(text[0])]) {
    for (const Opener& opener : openers_) {
      if (!applies(opener)) continue;
      const auto [found, length] = match_mark(opener.mark, text, last);
      if (found == Found::kPartly) return false;
      if (found == Found::kNo) continue;
      open(opener, length);
      return true;
    }
    if (opens_bare(text[0])) {
      bare_ = in_section_ = true;
      open_candidate(State::kSection, 0);
      return true;
    }
  }
  for (n = 1; n < text.size() && !is_white(text[n]) && !may_open_[byte_index(text[n])];) ++n;
  consume(n);
  give_prose(text.substr(0, n));
  return true;
}

void MarkedParser::give_prose(std::string_view text) {
  const bool thinks = state_ == State::kThought;
  const bool framing = !thinks && !text_here_ && (behind_thought_ || (behind_call_ && !has_text_));
  if (framing) white_.clear();
  if (thinks && !std::exchange(thought_begun_, true) && white_.starts_with('\n')) white_.erase(0, 1);
  emit(thinks ? AnswerPart::kThought : AnswerPart::kText, white_);
  emit(thinks ? AnswerPart::kThought : AnswerPart::kText, text);
  white_.clear();
  if (!thinks) text_here_ = has_text_ = true;
}

void MarkedParser::open_thought() {
  state_ = State::kThought;
  thought_begun_ = false;
  white_.clear();
}

void MarkedParser::close_thought() {
  if (white_.ends_with('\n')) white_.pop_back();
  if (thought_begun_) emit(AnswerPart::kThought, white_);
  white_.clear();
  state_ = State::kText;
  behind_thought_ = true;
  text_here_ = false;
}

void MarkedParser::end() {
  switch (state_) {
    case State::kSection:
    case State::kId:
    case State::kName:
      fail_candidate();
      break;
    case State::kArguments: {
      std::string json;
      reader_->read({}, true, json);
      add_arguments(json);
      end_call();
      break;
    }
    case State::kNameTail:
      end_call();
      break;
    case State::kObject:
      committed_ ? end_call() : fail_candidate();
      break;
    default:
      break;
  }
  if (state_ == State::kThought && thought_begun_) emit(AnswerPart::kThought, white_);
  if (state_ == State::kText && (text_here_ || !(behind_thought_ || behind_call_))) emit(AnswerPart::kText, white_);
}

}  // namespace mneme

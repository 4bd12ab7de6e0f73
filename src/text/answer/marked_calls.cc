// Calls of an answer: what may be one, its name, its arguments, its end.
#include <algorithm>

#include "src/text/answer/marked_parser.h"

namespace mneme {
namespace {

constexpr std::size_t kLongestName = 256;
// Not in the name of a tool, whatever else may be.
constexpr std::string_view kNotInNames = "<>{}[]()\"'`,\xFE\xFF";

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// "functions.f:0" as f.
std::string name_in_id(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  const std::size_t colon = id.rfind(':');
  const bool number = colon != std::string_view::npos && colon + 1 < id.size() &&
                      id.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return std::string(number ? id.substr(0, colon) : id);
}

}  // namespace

void MarkedParser::open_candidate(State state, std::size_t length) {
  raw_ = rest().substr(0, length);
  consume(length);
  in_thought_ = state_ == State::kThought;
  section_has_call_ = false;
  state_ = state;
  name_.clear();
  id_.clear();
}

// It is no call: what was read of it is text, and what follows too.
void MarkedParser::fail_candidate() {
  state_ = in_thought_ ? State::kThought : State::kText;
  bare_ = in_section_ = false;
  if (!raw_.empty()) give_prose(raw_);
  raw_.clear();
}

MarkedParser::State MarkedParser::first_of_call() const {
  return format_.call.id_end.empty() ? State::kName : State::kId;
}

void MarkedParser::take_raw(std::size_t n) {
  raw_ += rest().substr(0, n);
  consume(n);
}

// White space and what separates calls of a list.
bool MarkedParser::skips_in_section(char c) const {
  const bool listed = format_.calls == CallForm::kObject || format_.calls == CallForm::kPython;
  return is_white(c) || (listed && std::string_view("[],;").find(c) != std::string_view::npos);
}

bool MarkedParser::read_section(bool last) {
  const std::string_view text = rest();
  const char c = text[0];
  if (!format_.call.section_close.empty()) {
    const auto [found, length] = match_mark(format_.call.section_close, text, last);
    if (found == Found::kPartly) return false;
    if (found == Found::kWhole) return end_section(length);
  }
  if (!skips_in_section(c)) return open_call(last);
  if (!section_has_call_) {
    take_raw(1);
  } else {
    if (is_white(c)) white_ += c;
    consume(1);
  }
  return true;
}

bool MarkedParser::open_call(bool last) {
  const std::string_view text = rest();
  if (format_.calls == CallForm::kObject) {
    if (text[0] != '{') return fail_candidate(), true;
    object_ = std::make_unique<CallObject>(format_.keys);
    committed_ = false;
    arguments_.clear();
    state_ = State::kObject;
    return true;
  }
  MarkMatch opened{.found = Found::kWhole};
  if (format_.calls == CallForm::kPython) {
    if (!begins_name(text[0])) opened.found = Found::kNo;
  } else if (!format_.call.open.empty()) {
    opened = match_mark(format_.call.open, text, last);
  }
  if (opened.found == Found::kPartly) return false;
  if (opened.found == Found::kNo) return fail_candidate(), true;
  take_raw(opened.length);
  name_.clear();
  id_.clear();
  state_ = first_of_call();
  return true;
}

bool MarkedParser::end_section(std::size_t length) {
  if (!section_has_call_) {
    take_raw(length);
    fail_candidate();
    return true;
  }
  consume(length);
  white_.clear();
  in_section_ = bare_ = false;
  state_ = State::kText;
  return true;
}

bool MarkedParser::read_id(bool last) {
  const auto [found, length] = match_mark(format_.call.id_end, rest(), last);
  if (found == Found::kPartly) return false;
  if (found == Found::kWhole) {
    state_ = State::kName;
    take_raw(length);
  } else if (id_.size() == kLongestName || rest()[0] == kTokenBegin) {
    fail_candidate();
  } else {
    id_ += rest()[0];
    take_raw(1);
  }
  return true;
}

// Where the name ends: name_end, which is read with it, or what begins the arguments or ends the call.
MarkMatch MarkedParser::match_name_end(bool last) const {
  const std::string_view text = rest();
  if (!format_.call.name_end.empty()) return match_mark(format_.call.name_end, text, last);
  if (format_.calls == CallForm::kPython) return {text[0] == '(' ? Found::kWhole : Found::kNo};
  if (format_.calls == CallForm::kNotation) return {text[0] == '{' ? Found::kWhole : Found::kNo};
  Found found = Found::kNo;
  for (const std::string* mark : {&format_.argument.key_open, &format_.call.close, &format_.call.section_close}) {
    if (mark->empty() || found == Found::kWhole) continue;
    const Found one = match_mark(*mark, text, last).found;
    if (one != Found::kNo) found = one;
  }
  return {found};
}

bool MarkedParser::read_name(bool last) {
  const auto [found, length] = match_name_end(last);
  if (found == Found::kPartly) return false;
  if (found == Found::kWhole) {
    take_raw(length);
    return take_name(), true;
  }
  if (!format_.call.id_open.empty() && id_.empty()) {
    const MarkMatch id = match_mark(format_.call.id_open, rest(), last);
    if (id.found == Found::kPartly) return false;
    if (id.found == Found::kWhole) {
      reads_id_ = true;
      take_raw(id.length);
      return true;
    }
  }
  const char c = rest()[0];
  std::string& to = reads_id_ ? id_ : name_;
  const bool two_words = !is_white(c) && !trimmed(to).empty() && is_white(to.back());
  const bool control = byte_index(c) < 0x20 && !is_white(c);
  if (two_words || control || to.size() == kLongestName || kNotInNames.find(c) != std::string_view::npos)
    return fail_candidate(), true;
  to += c;
  take_raw(1);
  return true;
}

void MarkedParser::take_name() {
  reads_id_ = false;
  std::string name(trimmed(name_)), id(trimmed(id_));
  if (format_.id_holds_name) {
    id = name;
    name = name_in_id(name);
  }
  if (name.empty() || (bare_ && !tools_->contains(name))) return fail_candidate();
  commit(std::move(name), std::move(id));
  state_ = format_.call.name_tail.empty() ? State::kArguments : State::kNameTail;
}

// ---- a call

void MarkedParser::commit(std::string name, std::string id) {
  static const ArgumentTypes kNoTypes;
  const auto tool = tools_->find(name);
  const ArgumentTypes& types = tool == tools_->end() ? kNoTypes : tool->second;
  begin_call(std::move(name), std::move(id));
  raw_.clear();
  white_.clear();
  section_has_call_ = behind_call_ = true;
  text_here_ = in_thought_ = false;
  const CallMarks& call = format_.call;
  switch (format_.calls) {
    case CallForm::kTagged: {
      std::vector<std::string_view> followers;
      for (const std::string* mark : {&call.close, &call.section_close, &call.open, &call.section_open})
        if (!mark->empty()) followers.push_back(*mark);
      reader_ = std::make_unique<TaggedArguments>(format_.argument, std::move(followers), types);
      break;
    }
    case CallForm::kNotation:
    case CallForm::kPython:
      reader_ = std::make_unique<NotationArguments>(format_.quote);
      break;
    default:
      reader_ = std::make_unique<JsonArguments>();
  }
}

bool MarkedParser::read_name_tail(bool last) {
  const auto [found, length] = match_mark(format_.call.name_tail, rest(), last);
  if (found == Found::kPartly) return false;
  consume(found == Found::kWhole ? length : 1);
  if (found == Found::kWhole) state_ = State::kArguments;
  return true;
}

bool MarkedParser::read_arguments(bool last) {
  std::string json;
  const auto [read, state] = reader_->read(rest(), last, json);
  consume(read);
  add_arguments(json);
  if (state == ArgumentReader::State::kMore) return read > 0;
  end_call();
  state_ = State::kClose;
  return true;
}

bool MarkedParser::read_close(bool last) {
  const std::string_view text = rest();
  MarkMatch closed;
  if (!format_.call.close.empty()) closed = match_mark(format_.call.close, text, last);
  if (closed.found == Found::kPartly) return false;
  if (closed.found == Found::kNo && is_white(text[0])) {
    white_ += text[0];
    consume(1);
    return true;
  }
  if (closed.found == Found::kWhole) white_.clear();
  consume(closed.length);
  state_ = in_section_ ? State::kSection : State::kText;
  return true;
}

void MarkedParser::begin_object_call() {
  const std::string& name = object_->name();
  if (committed_ || name.empty() || (bare_ && !tools_->contains(name))) return;
  committed_ = true;
  commit(name, object_->id());
}

bool MarkedParser::read_object(bool last) {
  const auto [read, state, paused] = object_->read(rest(), last, arguments_);
  if (!committed_) raw_ += rest().substr(0, read);
  consume(read);
  // A bare object without arguments may be the answer itself.
  if (object_->has_arguments() || (state == CallObject::State::kDone && !bare_)) begin_object_call();
  if (committed_) {
    add_arguments(arguments_);
    arguments_.clear();
  }
  if (state == CallObject::State::kMore) return read > 0 || paused;
  if (committed_) {
    end_call();
    state_ = State::kSection;
  } else {
    fail_candidate();
  }
  return true;
}

}  // namespace mneme

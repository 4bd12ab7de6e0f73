#include <algorithm>

#include "src/text/answer/argument_reader.h"

namespace mneme {
namespace {

// Bytes of numbers, true, false and null.
bool is_scalar(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+' || c == '.';
}

bool is_json(char c) {
  return is_scalar(c) || is_white(c) || std::string_view("{}[],:\"").find(c) != std::string_view::npos;
}

// The text of a JSON string; empty where it is none.
std::string string_of(const std::string& json) {
  const auto value = nlohmann::json::parse(json, nullptr, false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace

ArgumentReader::Step JsonArguments::read(std::string_view text, bool, std::string& json) {
  std::size_t at = 0, from = 0;
  const auto give = [&](State state) {
    json += text.substr(from, at - from);
    return Step{at, state};
  };
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (!begun_) {
      if (is_white(c)) {
        from = at + 1;
        continue;
      }
      begun_ = true;
      scalar_ = is_scalar(c);
      if (!scalar_ && c != '{' && c != '[' && c != '"') return {at, State::kDone};
    }
    if (scalar_) {
      if (!is_scalar(c)) return give(State::kDone);
      continue;
    }
    if (in_string_) {
      if (c == kTokenBegin) return give(State::kDone);
      if (std::exchange(escaped_, !escaped_ && c == '\\') || c != '"') continue;
      in_string_ = false;
    } else {
      if (!is_json(c)) return give(State::kDone);
      if (c == '"') in_string_ = true;
      depth_ += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    }
    if (depth_ <= 0 && !in_string_) {
      ++at;
      return give(State::kDone);
    }
  }
  return give(State::kMore);
}

CallObject::Member CallObject::member_of(const std::string& key) const {
  const auto is_in = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), key) != names.end();
  };
  if (keys_.key_is_name) return Member::kArguments;
  if (is_in(keys_.name)) return Member::kName;
  if (is_in(keys_.arguments)) return Member::kArguments;
  return is_in(keys_.id) ? Member::kId : Member::kOther;
}

void CallObject::end_member(std::string& arguments) {
  where_ = Where::kBehind;
  if (member_ == Member::kName && name_.empty()) name_ = string_of(scratch_);
  if (member_ == Member::kId) id_ = string_of(scratch_);
  // Some models write the arguments as text that holds JSON.
  if (member_ == Member::kArguments && text_arguments_) arguments += string_of(scratch_);
  text_arguments_ = false;
}

CallObject::Step CallObject::read_member(std::string_view text, bool last, std::string& arguments) {
  if (value_ == nullptr) {
    if (is_white(text[0])) return {1, State::kMore};
    if (member_ == Member::kArguments && has_arguments_) member_ = Member::kOther;  // the first ones count
    text_arguments_ = member_ == Member::kArguments && text[0] == '"';
    value_ = std::make_unique<JsonArguments>();
    scratch_.clear();
    if (member_ == Member::kArguments) {
      has_arguments_ = true;
      return {0, State::kMore};
    }
  }
  const bool streams = member_ == Member::kArguments && !text_arguments_;
  const auto [read, state] = value_->read(text, last, streams ? arguments : scratch_);
  if (state == ArgumentReader::State::kMore) return {read, State::kMore};
  value_.reset();
  end_member(arguments);
  return {read, State::kMore};
}

CallObject::Step CallObject::read_some(std::string_view text, bool last, std::string& arguments) {
  const char c = text[0];
  if (where_ == Where::kValue) return read_member(text, last, arguments);
  if (where_ == Where::kKey) {
    const auto [read, state] = value_->read(text, last, scratch_);
    if (state == ArgumentReader::State::kMore) return {read, State::kMore};
    value_.reset();
    const std::string key = string_of(scratch_);
    if (keys_.key_is_name && name_.empty()) name_ = key;
    member_ = member_of(key);
    where_ = Where::kColon;
    return {read, State::kMore};
  }
  if (is_white(c)) return {1, State::kMore};
  switch (where_) {
    case Where::kStart:
      if (c != '{') return {0, State::kBroken};
      where_ = Where::kKeyOrEnd;
      return {1, State::kMore};
    case Where::kColon:
      if (c != ':') return {0, State::kBroken};
      where_ = Where::kValue;
      return {1, State::kMore};
    case Where::kBehind:
      if (c == '}') return {1, State::kDone};
      if (c != ',') return {0, State::kBroken};
      where_ = Where::kKeyOrEnd;
      return {1, State::kMore};
    default:
      if (c == '}') return {1, State::kDone};
      if (c != '"') return {0, State::kBroken};
      value_ = std::make_unique<JsonArguments>();
      scratch_.clear();
      where_ = Where::kKey;
      return {0, State::kMore};
  }
}

CallObject::Step CallObject::read(std::string_view text, bool last, std::string& arguments) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Where before = where_;
    const bool had_arguments = has_arguments_;
    const Step step = read_some(text.substr(at), last, arguments);
    at += step.read;
    if (step.state != State::kMore) return {at, step.state};
    if (has_arguments_ != had_arguments || (where_ == Where::kBehind && before != where_))
      return {at, State::kMore, true};
  }
  return {at, State::kMore};
}

void append_escaped(std::string_view text, std::string& json) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (c == '\n') {
      json += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      constexpr char kHex[] = "0123456789abcdef";
      json += "\\u00";
      json += kHex[byte / 16];
      json += kHex[byte % 16];
    } else {
      json += c;
    }
  }
}

}  // namespace mneme

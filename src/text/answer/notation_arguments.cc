#include "src/text/answer/argument_reader.h"

namespace mneme {
namespace {

constexpr std::size_t kLongestBareKey = 256;

bool is_one_of(char c, std::string_view bytes) {
  return bytes.find(c) != std::string_view::npos;
}

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// A number, true, false or null as it is written; any other word as a string.
std::string json_of_word(std::string_view word) {
  if (word == "True") return "true";
  if (word == "False") return "false";
  if (word == "None") return "null";
  if (nlohmann::json::accept(word)) return std::string(word);
  std::string json = "\"";
  append_escaped(spelled(word), json);
  return json += '"';
}

}  // namespace

void NotationArguments::begin_element(std::string& json) {
  if (std::exchange(frames_.back().any, true)) json += ", ";
}

void NotationArguments::end_bare(std::string& json) {
  json += json_of_word(trimmed(bare_));
  bare_.clear();
  where_ = Where::kBehind;
}

ArgumentReader::Step NotationArguments::close(char c, std::string& json) {
  if (c != frames_.back().close) return {0, State::kDone};
  json += frames_.back().members ? '}' : ']';
  frames_.pop_back();
  where_ = Where::kBehind;
  return {1, frames_.empty() ? State::kDone : State::kMore};
}

// {0, kMore} where text does not decide yet, {0, kDone} where no string opens.
ArgumentReader::Step NotationArguments::open_string(std::string_view text, bool last, bool element, std::string& json) {
  std::size_t length = 1;
  if (python()) {
    if (text[0] != '"' && text[0] != '\'') return {0, State::kDone};
    python_quote_ = text[0];
  } else {
    const MarkMatch match = match_mark(quote_, text, last);
    if (match.found != Found::kWhole) return {0, match.found == Found::kPartly ? State::kMore : State::kDone};
    length = match.length;
  }
  if (element) begin_element(json);
  json += '"';
  where_ = Where::kString;
  return {length, State::kMore};
}

ArgumentReader::Step NotationArguments::read_key(std::string_view text, bool last, std::string& json) {
  const char c = text[0];
  if (bare_.empty()) {
    if (is_white(c)) return {1, State::kMore};
    if (c == frames_.back().close) return close(c, json);
    const Step opened = open_string(text, last, true, json);
    if (opened.read > 0) key_string_ = true;
    if (opened.state == State::kMore) return opened;
  }
  const char end = python() && frames_.size() == 1 ? '=' : ':';
  if (c == end) {
    begin_element(json);
    json += '"';
    append_escaped(trimmed(bare_), json);
    json += "\": ";
    bare_.clear();
    where_ = Where::kValue;
    return {1, State::kMore};
  }
  if (bare_.size() == kLongestBareKey || is_one_of(c, "{}[](),\"'\xFE")) return {0, State::kDone};
  bare_ += c;
  return {1, State::kMore};
}

ArgumentReader::Step NotationArguments::read_value(std::string_view text, bool last, std::string& json) {
  const char c = text[0];
  if (is_white(c)) return {1, State::kMore};
  const bool member = frames_.back().members;
  if (!member && c == frames_.back().close) return close(c, json);
  const Step opened = open_string(text, last, !member, json);
  if (opened.state == State::kMore) return opened;
  if (!member) begin_element(json);
  if (c == '{' || c == '[' || (c == '(' && python())) {
    json += c == '{' ? '{' : '[';
    where_ = c == '{' ? Where::kKey : Where::kValue;
    frames_.push_back({.close = c == '{' ? '}' : c == '[' ? ']' : ')', .members = c == '{'});
    return {1, State::kMore};
  }
  where_ = Where::kBare;
  return {0, State::kMore};
}

ArgumentReader::Step NotationArguments::read_escape(char c, std::string& json) {
  where_ = Where::kString;
  if (escape_.empty()) {
    if (c == 'x' || c == 'u') {
      escape_ = c;
      where_ = Where::kEscape;
    } else if (is_one_of(c, "nrtbf")) {
      json += '\\';
      json += c;
    } else if (c != '\n') {
      if (!is_one_of(c, "\\'\"")) json += "\\\\";
      append_escaped(std::string_view(&c, 1), json);
    }
    return {1, State::kMore};
  }
  const std::size_t digits = escape_[0] == 'x' ? 2 : 4;
  const bool hex = is_hex(c);
  if (hex) escape_ += c;
  if (hex && escape_.size() <= digits) {
    where_ = Where::kEscape;
    return {1, State::kMore};
  }
  const bool whole = escape_.size() == digits + 1;
  json += whole ? (digits == 2 ? "\\u00" : "\\u") + escape_.substr(1) : "\\\\" + escape_;
  escape_.clear();
  return {hex ? 1u : 0u, State::kMore};
}

ArgumentReader::Step NotationArguments::read_string(std::string_view text, bool last, std::string& json) {
  const char c = text[0];
  std::size_t end = 0;
  if (python()) {
    if (c == '\\') {
      where_ = Where::kEscape;
      return {1, State::kMore};
    }
    end = c == python_quote_ ? 1 : 0;
  } else if (c == quote_[0]) {
    const MarkMatch match = match_mark(quote_, text, last);
    if (match.found == Found::kPartly) return {0, State::kMore};
    end = match.length;
  }
  if (end == 0) {
    append_escaped(spelled(text.substr(0, 1)), json);
    return {1, State::kMore};
  }
  json += '"';
  where_ = Where::kBehind;
  if (std::exchange(key_string_, false)) where_ = Where::kColon;
  return {end, State::kMore};
}

ArgumentReader::Step NotationArguments::behind(char c, std::string& json) {
  if (is_white(c)) return {1, State::kMore};
  if (c != ',') return close(c, json);
  where_ = frames_.back().members ? Where::kKey : Where::kValue;
  return {1, State::kMore};
}

ArgumentReader::Step NotationArguments::read_byte(std::string_view text, bool last, std::string& json) {
  const char c = text[0];
  switch (where_) {
    case Where::kStart:
      if (is_white(c)) return {1, State::kMore};
      if (c != (python() ? '(' : '{')) return {0, State::kDone};
      frames_.push_back({.close = python() ? ')' : '}', .members = true});
      json += '{';
      where_ = Where::kKey;
      return {1, State::kMore};
    case Where::kKey:
      return read_key(text, last, json);
    case Where::kColon:
      if (is_white(c)) return {1, State::kMore};
      if (c != ':') return {0, State::kDone};
      json += ": ";
      where_ = Where::kValue;
      return {1, State::kMore};
    case Where::kValue:
      return read_value(text, last, json);
    case Where::kBare:
      if (is_one_of(c, ",}])\xFE")) {
        end_bare(json);
        return {0, State::kMore};
      }
      bare_ += c;
      return {1, State::kMore};
    case Where::kString:
      return read_string(text, last, json);
    case Where::kEscape:
      return read_escape(c, json);
    case Where::kBehind:
      return behind(c, json);
  }
  return {0, State::kDone};
}

ArgumentReader::Step NotationArguments::read(std::string_view text, bool last, std::string& json) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Where before = where_;
    const std::size_t frames = frames_.size();
    const auto [read, state] = read_byte(text.substr(at), last, json);
    at += read;
    if (state == State::kDone) return {at, state};
    if (read == 0 && where_ == before && frames_.size() == frames) break;
  }
  if (last && where_ == Where::kBare) json += spelled(bare_);
  return {at, State::kMore};
}

}  // namespace mneme

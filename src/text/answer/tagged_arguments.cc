#include "src/text/answer/argument_reader.h"

namespace mneme {
namespace {

constexpr std::size_t kLongestKey = 256;
constexpr std::size_t kMaxWhiteBehindValue = 64;

// What the attributes of a value say of its type; nothing: they do not.
std::optional<ArgumentType> type_said(std::string_view attributes) {
  const auto has = [&](std::string_view text) { return attributes.find(text) != std::string_view::npos; };
  if (has("string=\"true\"") || has("type=\"string\"")) return ArgumentType::kString;
  if (has("string=\"false\"") || has("type=\"")) return ArgumentType::kOther;
  return std::nullopt;
}

// A value that is not known to be a string, as JSON.
std::string json_of_value(std::string_view value, ArgumentType type) {
  const std::string_view bare = trimmed(value);
  if (bare == "True") return "true";
  if (bare == "False") return "false";
  if (bare == "None") return "null";
  const bool string = bare.starts_with('"') && type == ArgumentType::kAny;
  if (!string && nlohmann::json::accept(bare)) return std::string(bare);
  std::string json = "\"";
  append_escaped(value, json);
  return json += '"';
}

}  // namespace

void TaggedArguments::begin_value(std::string& json) {
  key_ = std::string(trimmed(key_));
  repeated_ = !keys_.insert(key_).second;  // the first value of a key counts
  const auto known = types_.find(key_);
  type_ = type_said(attributes_).value_or(known == types_.end() ? ArgumentType::kAny : known->second);
  value_end_ = marks_.value_end;
  if (const std::size_t at = value_end_.find("{key}"); at != std::string::npos) value_end_.replace(at, 5, key_);
  value_.clear();
  at_line_ = marks_.lines;
  held_line_ = false;
  where_ = Where::kValue;
  if (repeated_) return;
  json += std::exchange(any_, true) ? ", \"" : "{\"";
  append_escaped(key_, json);
  json += type_ == ArgumentType::kString ? "\": \"" : "\": ";
}

void TaggedArguments::take(std::string_view text, std::string& json) {
  if (std::exchange(at_line_, at_line_ && text.empty()) && text.starts_with('\n')) text.remove_prefix(1);
  if (text.empty()) return;
  std::string whole = held_line_ ? "\n" : "";
  append_spelled(text, whole);
  held_line_ = marks_.lines && whole.ends_with('\n');
  if (held_line_) whole.pop_back();
  if (repeated_) return;
  if (type_ == ArgumentType::kString) {
    append_escaped(whole, json);
  } else {
    value_ += whole;
  }
}

void TaggedArguments::end_value(std::string& json) {
  if (!repeated_) json += type_ == ArgumentType::kString ? "\"" : json_of_value(value_, type_);
  where_ = Where::kBetween;
  key_.clear();
  attributes_.clear();
}

Found TaggedArguments::ends_value(std::string_view behind, bool last) const {
  std::size_t at = 0;
  while (at < behind.size() && is_white(behind[at]))
    if (++at == kMaxWhiteBehindValue) return Found::kWhole;
  if (at == behind.size()) return last ? Found::kWhole : Found::kPartly;
  Found found = match_mark(marks_.key_open, behind.substr(at), last).found;
  for (const std::string_view mark : followers_) {
    if (found == Found::kWhole) break;
    const Found other = match_mark(mark, behind.substr(at), last).found;
    if (other != Found::kNo) found = other;
  }
  return found;
}

ArgumentReader::Step TaggedArguments::read_value(std::string_view text, bool last, std::string& json) {
  for (std::size_t at = 0;;) {
    const std::size_t mark = text.find(value_end_[0], at);
    if (mark == std::string_view::npos) {
      take(text.substr(at), json);
      return {text.size(), State::kMore};
    }
    take(text.substr(at, mark - at), json);
    const auto [found, length] = match_mark(value_end_, text.substr(mark), last);
    if (found == Found::kPartly) return {mark, State::kMore};
    const Found ends = found == Found::kNo ? Found::kNo : ends_value(text.substr(mark + length), last);
    if (ends == Found::kPartly) return {mark, State::kMore};
    if (ends == Found::kWhole) {
      end_value(json);
      return {mark + length, State::kMore};
    }
    at = mark + std::max<std::size_t>(length, 1);
    take(text.substr(mark, at - mark), json);
  }
}

// Copies to `to` what is before the mark. kDone: the mark was read, or too much precedes it.
ArgumentReader::Step TaggedArguments::read_until(std::string_view mark, std::string_view text, bool last,
                                                 std::string& to) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto [found, length] = match_mark(mark, text.substr(at), last);
    if (found == Found::kPartly) return {at, State::kMore};
    if (found == Found::kWhole) return {at + length, State::kDone};
    to += text[at];
    if (to.size() > kLongestKey) return {at + 1, State::kDone};
  }
  return {text.size(), State::kMore};
}

void TaggedArguments::end_all(std::string& json) {
  json += any_ ? "}" : "{}";
  where_ = Where::kEnd;
}

ArgumentReader::Step TaggedArguments::read_between(std::string_view text, bool last, std::string& json) {
  if (is_white(text[0])) return {1, State::kMore};
  // Before the mark of a key, with which that of the end may begin.
  for (const std::string_view mark : followers_) {
    const Found found = match_mark(mark, text, last).found;
    if (found == Found::kPartly) return {0, State::kMore};
    if (found == Found::kNo) continue;
    end_all(json);
    return {0, State::kDone};
  }
  const auto [found, length] = match_mark(marks_.key_open, text, last);
  if (found == Found::kNo) end_all(json);
  if (found == Found::kWhole) where_ = Where::kKey;
  return {length, found == Found::kNo ? State::kDone : State::kMore};
}

ArgumentReader::Step TaggedArguments::read_some(std::string_view text, bool last, std::string& json) {
  if (where_ == Where::kBetween) return read_between(text, last, json);
  if (where_ == Where::kValue) return read_value(text, last, json);
  const bool key = where_ == Where::kKey;
  std::string& to = key ? key_ : attributes_;
  const Step step = read_until(key ? marks_.key_end : marks_.value_open, text, last, to);
  if (step.state == State::kMore) return step;
  if (to.size() > kLongestKey) {
    json += spelled(key_ + attributes_);
    where_ = Where::kEnd;
    return step;
  }
  if (key && !marks_.value_open.empty()) {
    where_ = Where::kAttributes;
  } else {
    begin_value(json);
  }
  return {step.read, State::kMore};
}

ArgumentReader::Step TaggedArguments::read(std::string_view text, bool last, std::string& json) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Where before = where_;
    const auto [read, state] = read_some(text.substr(at), last, json);
    at += read;
    if (state == State::kDone) return {at, state};
    if (read == 0 && where_ == before) break;
  }
  if (!last) return {at, State::kMore};
  // Cut: a value is given as far as it was written.
  if (where_ == Where::kBetween) end_all(json);
  if (where_ == Where::kValue && type_ != ArgumentType::kString && !repeated_) json += value_;
  return {at, State::kDone};
}

}  // namespace mneme

// What is not written as JSON writes it: strings without escapes, keys without quotes.
#include <limits>

#include "src/text/grammar/json_matcher.h"
#include "src/text/grammar/json_notation.h"

namespace mneme {
namespace {

// Texts that readers take for values.
const ByteTree& value_words() {
  static const ByteTree kWords = [] {
    ByteTree words;
    for (std::int32_t i = 0; const char* word : {"true", "false", "null", "True", "False", "None"})
      words.add(word, i++);
    return words;
  }();
  return kWords;
}
constexpr std::string_view kValueBegins = "{[\"-0123456789";
constexpr std::string_view kWhite = " \t\r\n";

// Where a text that may be one of value_words() is in them: a node and one more. 0: it is none.
std::uint64_t word_with(std::uint64_t at, bool first, std::uint8_t byte) {
  if (!first && at == 0) return 0;
  const auto node = first ? 0 : static_cast<std::int32_t>(at - 1);
  if (!first && value_words().node(node).text >= 0 && kWhite.find(static_cast<char>(byte)) != kWhite.npos) return at;
  return static_cast<std::uint64_t>(value_words().child(node, byte) + 1);
}
bool is_word(std::uint64_t at) {
  return at != 0 && value_words().node(static_cast<std::int32_t>(at - 1)).text >= 0;
}

// How much of `mark` the text ends with after one more byte.
std::int32_t matched_with(std::string_view mark, std::int32_t matched, std::uint8_t byte) {
  std::string end(mark.substr(0, matched));
  end += static_cast<char>(byte);
  for (std::string_view rest = end; !rest.empty(); rest.remove_prefix(1))
    if (mark.starts_with(rest)) return static_cast<std::int32_t>(rest.size());
  return 0;
}

bool is_name_byte(std::uint8_t b) {
  return (b >= '0' && b <= '9') || (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || b == '_' || b == '-';
}

}  // namespace

std::uint64_t JsonMatcher::with_byte(std::uint64_t name, std::uint8_t byte) {
  name = (name ^ (byte + 1u)) * 0x9E3779B97F4A7C15u;
  return name ^ name >> 29;
}

void JsonMatcher::begin_text(Thread& t) const {
  const JsonNode& n = node(t);
  t.top = {.node = t.top.node, .phase = Phase::kString};
  if (n.pattern != nullptr) t.top.bits = n.pattern->begin();
}

void JsonMatcher::raw_mark(Thread t, std::uint8_t byte, Threads& to) const {
  const RawText& raw = *node(t).raw;
  const bool opens = t.top.phase == Phase::kOpen;
  const std::string& mark = opens ? raw.open : raw.close;
  if (byte != static_cast<unsigned char>(mark[t.top.at])) return;
  if (++t.top.at < std::ssize(mark)) {
    to.push_back(std::move(t));
  } else if (opens) {
    begin_text(t);
    to.push_back(std::move(t));
  } else {
    finish(t, to);
  }
}

bool JsonMatcher::text_may_end(const Thread& t) const {
  const JsonNode& n = node(t);
  return t.top.count >= n.least && (n.pattern == nullptr || n.pattern->accepts(t.top.bits)) && !is_word(t.top.name);
}

void JsonMatcher::raw_text(Thread t, std::uint8_t byte, Threads& to) const {
  const JsonNode& n = node(t);
  const RawText& raw = *n.raw;
  Frame& f = t.top;
  const bool between = f.text.mode == JsonText::Mode::kPlain;
  if (between && text_may_end(t) && !raw.close.empty() && byte == static_cast<unsigned char>(raw.close[0])) {
    Thread end = t;
    end.top.phase = Phase::kClose;
    end.top.at = 0;
    raw_mark(std::move(end), byte, to);
  }
  if (between && n.most && f.count == *n.most) return;
  if (n.pattern != nullptr && byte >= 0x80) return;
  std::uint8_t decoded = byte;
  JsonText::Step step = JsonText::Step::kCharacter;
  const bool other = byte == '"' || byte == '\\' || byte < 0x20;
  if (other && byte < 0x20 && kWhite.find(static_cast<char>(byte)) == kWhite.npos) return;
  if (other && !between) return;
  if (!other) step = f.text.step(byte, decoded);
  if (step == JsonText::Step::kNo) return;
  if (raw.reads_as_text && between) {
    const bool first = f.count == 0, value = kValueBegins.find(static_cast<char>(byte)) != kValueBegins.npos;
    if (first && (value || kWhite.find(static_cast<char>(byte)) != kWhite.npos)) return;
    f.name = word_with(f.name, first, byte);
  }
  if (!raw.never.empty()) f.at = matched_with(raw.never, f.at, byte);
  if (!raw.never.empty() && f.at == std::ssize(raw.never)) return;
  if (step == JsonText::Step::kCharacter) {
    if (f.count < 0xFFFFFFFF) ++f.count;
    if (n.pattern != nullptr && (f.bits = n.pattern->step(f.bits, decoded)) == 0) return;
    if (raw.close.empty() && text_may_end(t)) finish(t, to);
  }
  to.push_back(std::move(t));
}

void JsonMatcher::bare_key(Thread t, std::uint8_t byte, Threads& to) const {
  const JsonNode& n = node(t);
  Frame& f = t.top;
  if (f.name != 0 && byte == (n.form == ObjectForm::kArguments ? '=' : ':')) {
    if (!take_name(t)) return;
    f.phase = Phase::kColon;
    return object(std::move(t), byte, to);
  }
  const bool others = n.additional != kNoNode && fits(t, n.additional) && is_name_byte(byte) && f.more_names &&
                      f.count < kLongestUndeclaredName;
  ++f.count;
  if (f.at >= 0) f.at = n.names.child(f.at, byte);
  f.more_names = others;
  f.name = with_byte(f.name, byte);
  if (!others && (f.at < 0 || (n.names.node(f.at).below & open_properties(t)) == 0)) return;
  to.push_back(std::move(t));
}

std::optional<std::size_t> JsonMatcher::plain_room(const Thread& t) const {
  constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
  if (t.done || t.top.text.mode != JsonText::Mode::kPlain) return std::nullopt;
  const JsonNode& n = node(t);
  if (t.top.phase == Phase::kKey && n.form == ObjectForm::kJson && n.additional != kNoNode && fits(t, n.additional))
    return kAny;
  if (t.top.phase != Phase::kString || n.pattern != nullptr) return std::nullopt;
  return n.most ? std::size_t{*n.most} - t.top.count : kAny;
}

void JsonMatcher::not_plain(const Thread& t, ByteSet& first, ByteSet& anywhere) const {
  const auto add = [](ByteSet& to, char c) { to.set(static_cast<unsigned char>(c)); };
  const JsonNode& n = node(t);
  if (t.done || n.raw == nullptr) return;
  if (t.top.phase == Phase::kClose) add(first, n.raw->close[t.top.at]);
  if (t.top.phase != Phase::kString) return;
  add(anywhere, n.raw->close[0]);
  add(anywhere, n.raw->never[0]);
  add(first, n.raw->never[t.top.at]);
  if (!n.raw->reads_as_text) return;
  const bool begins = t.top.count == 0;
  if (!begins && t.top.name == 0) return;
  for (const char c : begins ? std::string(kValueBegins) + std::string(kWhite) : std::string(kWhite)) add(first, c);
  const auto at = begins ? 0 : static_cast<std::int32_t>(t.top.name - 1);
  for (const auto& [byte, child] : value_words().node(at).children) first.set(byte);
}

}  // namespace mneme

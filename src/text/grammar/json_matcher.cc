#include "src/text/grammar/json_matcher.h"

#include <algorithm>
#include <limits>

namespace mneme {
namespace {

constexpr std::int32_t kOther = -1;

bool is_blank(std::uint8_t b) {
  return b == ' ' || b == '\n' || b == '\t' || b == '\r';
}

// Frame::blanks after one more; 0: not allowed.
std::uint8_t blanks_with(std::uint8_t blanks, std::uint8_t byte, int depth) {
  constexpr std::uint8_t kSpace = 1, kNewLine = 2;
  if (blanks == 0) return byte == ' ' || byte == '\t' ? kSpace : byte == '\n' ? kNewLine : std::uint8_t{0};
  const bool indents =
      blanks >= kNewLine && (byte == ' ' || byte == '\t') && blanks - kNewLine < JsonMatcher::kMaxIndent * depth;
  return indents ? static_cast<std::uint8_t>(blanks + 1) : std::uint8_t{0};
}
// Hash of a name and one byte more.
std::uint64_t hash_with(std::uint64_t hash, std::uint8_t byte) {
  hash = (hash ^ (byte + 1u)) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}
bool is_digit(std::uint8_t b) {
  return b >= '0' && b <= '9';
}

}  // namespace

JsonMatcher::Threads JsonMatcher::begin() const {
  Thread t;
  t.top.node = grammar_->root;
  return {t};
}

bool JsonMatcher::step_all(const Threads& from, std::uint8_t byte, Threads& to) const {
  to.clear();
  for (const Thread& t : from) step(t, byte, to);
  return !to.empty();
}

void JsonMatcher::step(const Thread& from, std::uint8_t byte, Threads& to) const {
  if (from.done) return;
  const Phase phase = from.top.phase;
  const bool inside = phase == Phase::kString || phase == Phase::kKey || phase == Phase::kLiteral ||
                      (phase >= Phase::kSign && phase <= Phase::kExponent);
  if (!inside && is_blank(byte)) {
    const std::uint8_t blanks = blanks_with(from.top.blanks, byte, from.depth);
    if (blanks == 0) return;
    to.push_back(from);
    to.back().top.blanks = blanks;
    return;
  }
  switch (phase) {
    case Phase::kStart:
      return start(from, byte, to);
    case Phase::kLiteral:
      return literal(from, byte, to);
    case Phase::kString:
      return string(from, byte, to);
    case Phase::kFirstKey:
    case Phase::kNextKey:
    case Phase::kColon:
    case Phase::kMember:
      return object(from, byte, to);
    case Phase::kKey:
      return key(from, byte, to);
    case Phase::kFirstItem:
    case Phase::kItem:
      return array(from, byte, to);
    default:
      return number(from, byte, to);
  }
}

void JsonMatcher::finish(const Thread& t, Threads& to) const {
  Thread up;
  up.depth = t.depth;
  if (t.below == nullptr) {
    up.done = true;
    to.push_back(std::move(up));
    return;
  }
  up.top = t.below->frame;
  up.below = t.below->below;
  up.top.blanks = 0;
  if (node(up).kind == JsonNode::Kind::kArray) {
    up.top.phase = Phase::kItem;
    ++up.top.count;
  } else {
    up.top.phase = Phase::kMember;
  }
  to.push_back(std::move(up));
}

void JsonMatcher::push(Thread t, NodeId id, Threads& to) const {
  auto link = std::make_shared<Link>();
  link->frame = t.top;
  link->below = std::move(t.below);
  t.below = std::move(link);
  t.top = {};
  t.top.node = id;
  to.push_back(std::move(t));
}

bool JsonMatcher::fits(const Thread& t, NodeId id) const {
  return t.depth + node(id).depth <= kDeepest;
}

void JsonMatcher::start(Thread t, std::uint8_t byte, Threads& to) const {
  const JsonNode& n = node(t);
  const NodeId id = t.top.node;
  switch (n.kind) {
    case JsonNode::Kind::kUnion:
      for (const NodeId a : n.alternatives) {
        t.top.node = a;
        if (fits(t, a)) start(t, byte, to);
      }
      return;
    case JsonNode::Kind::kLiteral:
      t.top.at = 0;
      return literal(std::move(t), byte, to);
    case JsonNode::Kind::kString:
      if (byte != '"') return;
      t.top = {.node = id, .phase = Phase::kString};
      if (n.pattern != nullptr) t.top.bits = n.pattern->begin();
      to.push_back(std::move(t));
      return;
    case JsonNode::Kind::kNumber:
      t.top = {.node = id};
      if (byte == '-') {
        t.top.digits.negative = true;
        return put_number(std::move(t), Phase::kSign, to);
      }
      t.top.phase = Phase::kSign;
      return number(std::move(t), byte, to);
    case JsonNode::Kind::kObject:
    case JsonNode::Kind::kArray: {
      const bool object = n.kind == JsonNode::Kind::kObject;
      if (byte != static_cast<unsigned char>(object ? '{' : '[') || !fits(t, id)) return;
      t.top = {.node = id, .phase = object ? Phase::kFirstKey : Phase::kFirstItem};
      ++t.depth;
      to.push_back(std::move(t));
      return;
    }
  }
}

void JsonMatcher::literal(Thread t, std::uint8_t byte, Threads& to) const {
  const ByteTree& texts = node(t).literals;
  t.top.phase = Phase::kLiteral;
  t.top.at = texts.child(t.top.at, byte);
  if (t.top.at < 0) return;
  const ByteTree::Node& at = texts.node(t.top.at);
  if (at.text >= 0) finish(t, to);
  if (!at.children.empty()) to.push_back(std::move(t));
}

void JsonMatcher::string(Thread t, std::uint8_t byte, Threads& to) const {
  const JsonNode& n = node(t);
  Frame& f = t.top;
  const bool plain = f.text.mode == JsonText::Mode::kPlain;
  std::uint8_t decoded = 0;
  const bool pattern = n.pattern != nullptr;
  // A pattern is over ASCII only, and \u could encode anything.
  if (pattern && (byte >= 0x80 || (f.text.mode == JsonText::Mode::kEscape && byte == 'u'))) return;
  if (plain && byte != '"' && n.most && f.count == *n.most) return;
  const JsonText::Step step = f.text.step(byte, decoded);
  if (step == JsonText::Step::kNo) return;
  if (step == JsonText::Step::kEnd) {
    if (f.count >= n.least && (!pattern || n.pattern->accepts(f.bits))) finish(t, to);
    return;
  }
  if (step == JsonText::Step::kCharacter) {
    if (f.count < 0xFFFFFFFF) ++f.count;
    if (pattern && (f.bits = n.pattern->step(f.bits, decoded)) == 0) return;
  } else if (pattern) {  // a backslash: some escaped character must be possible
    bool some = false;
    for (const char c : {'"', '\\', '/', '\b', '\f', '\n', '\r', '\t'}) some = some || n.pattern->step(f.bits, c) != 0;
    if (!some) return;
  }
  to.push_back(std::move(t));
}

// In this phase the number may end, continue, or both.
void JsonMatcher::put_number(Thread t, Phase phase, Threads& to) const {
  const JsonNode& n = node(t);
  t.top.phase = phase;
  if (!n.range.can_become(t.top.digits)) return;
  const bool may_end =
      phase == Phase::kZero || phase == Phase::kWhole || phase == Phase::kFraction || phase == Phase::kExponent;
  if (may_end && n.range.holds(t.top.digits)) finish(t, to);
  to.push_back(std::move(t));
}

void JsonMatcher::number(Thread t, std::uint8_t byte, Threads& to) const {
  const JsonNode& n = node(t);
  Frame& f = t.top;
  NumberRange::Digits& d = f.digits;
  const Phase phase = f.phase;
  const bool digit = is_digit(byte);
  const unsigned value = byte - '0';
  const auto add_digit = [&](int& places) {
    d.value = d.value * 10 + value;
    ++places;
  };
  const bool exponent = (byte == 'e' || byte == 'E') && !n.integer && !n.range.bounded();
  switch (phase) {
    case Phase::kSign:
      if (!digit) return;
      add_digit(d.whole);
      return put_number(std::move(t), byte == '0' ? Phase::kZero : Phase::kWhole, to);
    case Phase::kWhole:
      if (digit) {
        if (d.whole == NumberRange::kMaxWhole) return;
        add_digit(d.whole);
        return put_number(std::move(t), phase, to);
      }
      [[fallthrough]];
    case Phase::kZero:
      if (byte == '.' && !n.integer) {
        d.point = true;
        return put_number(std::move(t), Phase::kPoint, to);
      }
      if (exponent) return put_number(std::move(t), Phase::kE, to);
      return;
    case Phase::kPoint:
    case Phase::kFraction:
      if (digit) {
        // Without bounds the value does not matter; 24 digits exceed a double's precision.
        if (d.fraction == (n.range.bounded() ? NumberRange::kMaxFraction : 24)) return;
        if (n.range.bounded()) {
          add_digit(d.fraction);
        } else {
          ++d.fraction;
        }
        return put_number(std::move(t), Phase::kFraction, to);
      }
      if (exponent && phase == Phase::kFraction) return put_number(std::move(t), Phase::kE, to);
      return;
    case Phase::kE:
      if (byte == '+' || byte == '-') return put_number(std::move(t), Phase::kESign, to);
      [[fallthrough]];
    case Phase::kESign:
    case Phase::kExponent:
      if (!digit || f.count * 10 + value > NumberRange::kMaxExponent || f.at == 4) return;
      f.count = f.count * 10 + value;
      ++f.at;
      return put_number(std::move(t), Phase::kExponent, to);
    default:
      return;
  }
}

std::uint64_t JsonMatcher::open_properties(const Thread& t) const {
  const JsonNode& n = node(t);
  std::uint64_t open = ~t.top.bits;
  const std::uint64_t missing = n.required & open;
  // In order: the first required property that is missing, and the optional ones before it.
  if (n.ordered && missing != 0) open &= missing ^ (missing - 1);
  std::uint64_t fit = 0;
  for (std::size_t i = 0; i < n.properties.size(); ++i)
    if (fits(t, n.properties[i])) fit |= std::uint64_t{1} << i;
  return open & fit;
}

bool JsonMatcher::can_have_key(const Thread& t) const {
  const JsonNode& n = node(t);
  return (n.additional != kNoNode && fits(t, n.additional)) || open_properties(t) != 0;
}

void JsonMatcher::object(Thread t, std::uint8_t byte, Threads& to) const {
  const JsonNode& n = node(t);
  Frame& f = t.top;
  f.blanks = 0;
  const bool before_key = f.phase == Phase::kFirstKey || f.phase == Phase::kNextKey;
  if (f.phase == Phase::kColon) {
    if (byte != ':') return;
    return push(std::move(t), f.at == kOther ? n.additional : n.properties[f.at], to);
  }
  if (byte == '}' && f.phase != Phase::kNextKey && (n.required & ~f.bits) == 0) {
    --t.depth;
    return finish(t, to);
  }
  if (before_key && byte == '"' && can_have_key(t)) {
    f.phase = Phase::kKey;
    f.at = 0;
    f.name = 0;
    f.text = {};
    to.push_back(std::move(t));
  } else if (f.phase == Phase::kMember && byte == ',' && can_have_key(t)) {
    f.phase = Phase::kNextKey;
    to.push_back(std::move(t));
  }
}

bool JsonMatcher::take_name(Thread& t) const {
  const JsonNode& n = node(t);
  Frame& f = t.top;
  f.at = f.at >= 0 ? n.names.node(f.at).text : kOther;
  if (f.at >= 0) {
    const std::uint64_t bit = std::uint64_t{1} << f.at;
    if ((open_properties(t) & bit) == 0) return false;
    f.bits |= n.ordered ? bit | (bit - 1) : bit;
    return true;
  }
  if (n.additional == kNoNode || !fits(t, n.additional)) return false;
  Names names = f.others == nullptr ? Names() : *f.others;
  if (std::find(names.begin(), names.end(), f.name) != names.end()) return false;
  names.push_back(f.name);
  f.others = std::make_shared<const Names>(std::move(names));
  return true;
}

void JsonMatcher::key(Thread t, std::uint8_t byte, Threads& to) const {
  const JsonNode& n = node(t);
  Frame& f = t.top;
  const bool others = n.additional != kNoNode && fits(t, n.additional);
  // A name is matched by its bytes: \u would encode it differently.
  if (f.text.mode == JsonText::Mode::kEscape && byte == 'u') return;
  const bool raw = f.text.mode != JsonText::Mode::kEscape;
  std::uint8_t decoded = 0;
  const JsonText::Step step = f.text.step(byte, decoded);
  if (step == JsonText::Step::kNo) return;
  if (step == JsonText::Step::kEnd) {
    if (!take_name(t)) return;
    f.phase = Phase::kColon;
    to.push_back(std::move(t));
    return;
  }
  const bool backslash = raw && f.text.mode == JsonText::Mode::kEscape;
  if (!backslash) {
    const std::uint8_t meant = raw ? byte : decoded;
    if (f.at >= 0) f.at = n.names.child(f.at, meant);
    if (others) f.name = hash_with(f.name, meant);
  }
  if (!others) {  // an unused name must be possible
    if (f.at < 0) return;
    const std::uint64_t open = n.names.node(f.at).below & open_properties(t);
    if (open == 0) return;
    if (backslash) {
      bool some = false;
      for (const unsigned char c : {'"', '\\', '/', '\b', '\f', '\n', '\r', '\t'}) {
        const std::int32_t child = n.names.child(f.at, c);
        some = some || (child >= 0 && (n.names.node(child).below & open) != 0);
      }
      if (!some) return;
    }
  }
  to.push_back(std::move(t));
}

bool JsonMatcher::can_have_item(const Thread& t) const {
  const JsonNode& n = node(t);
  return n.items != kNoNode && (!n.most || t.top.count < *n.most) && fits(t, n.items);
}

void JsonMatcher::array(Thread t, std::uint8_t byte, Threads& to) const {
  const JsonNode& n = node(t);
  Frame& f = t.top;
  f.blanks = 0;
  if (byte == ']' && f.count >= n.least) {
    --t.depth;
    return finish(t, to);
  }
  if (f.phase == Phase::kItem) {
    if (byte == ',' && can_have_item(t)) push(std::move(t), n.items, to);
    return;
  }
  if (!can_have_item(t)) return;
  Threads item;
  push(std::move(t), n.items, item);
  start(item[0], byte, to);
}

std::optional<std::size_t> JsonMatcher::plain_room(const Thread& t) const {
  constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
  if (t.done || t.top.text.mode != JsonText::Mode::kPlain) return std::nullopt;
  const JsonNode& n = node(t);
  if (t.top.phase == Phase::kKey && n.additional != kNoNode && fits(t, n.additional)) return kAny;
  if (t.top.phase != Phase::kString || n.pattern != nullptr) return std::nullopt;
  return n.most ? std::size_t{*n.most} - t.top.count : kAny;
}

}  // namespace mneme

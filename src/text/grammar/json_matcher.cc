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
// What opens an object, follows a key, and closes the object.
std::string_view braces(const JsonNode& n) {
  return n.form == ObjectForm::kArguments ? "(=)" : "{:}";
}

}  // namespace

JsonMatcher::Threads JsonMatcher::begin(NodeId root) const {
  Thread t;
  t.top.node = root;
  if (node(t).raw == nullptr) return {t};
  if (node(t).kind == JsonNode::Kind::kLiteral) {
    t.top.phase = Phase::kLiteral;
  } else if (node(t).raw->open.empty()) {
    begin_text(t);
  } else {
    t.top.phase = Phase::kOpen;
  }
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
                      phase == Phase::kOpen || phase == Phase::kClose ||
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
      return node(from).raw == nullptr ? string(from, byte, to) : raw_text(from, byte, to);
    case Phase::kOpen:
    case Phase::kClose:
      return raw_mark(from, byte, to);
    case Phase::kFirstKey:
    case Phase::kNextKey:
    case Phase::kColon:
    case Phase::kMember:
      return object(from, byte, to);
    case Phase::kKey:
      return node(from).form == ObjectForm::kJson ? key(from, byte, to) : bare_key(from, byte, to);
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
      if (n.raw != nullptr) {
        t.top = {.node = id, .phase = Phase::kOpen};
        return raw_mark(std::move(t), byte, to);
      }
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
      if (byte != static_cast<unsigned char>(object ? braces(n)[0] : '[') || !fits(t, id)) return;
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
  if (byte == '/' && f.text.mode == JsonText::Mode::kEscape && !grammar_->escapes_slash) return;
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

std::uint64_t JsonMatcher::open_members(const JsonNode& n, std::uint64_t seen) {
  std::uint64_t open = ~seen;
  const std::uint64_t missing = n.required & open;
  // In order: the first required property that is missing, and the optional ones before it.
  if (n.ordered && missing != 0) open &= missing ^ (missing - 1);
  return open;
}

std::uint64_t JsonMatcher::open_properties(const Thread& t) const {
  const JsonNode& n = node(t);
  const std::uint64_t open = open_members(n, t.top.bits);
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
    if (byte != braces(n)[1]) return;
    return push(std::move(t), f.at == kOther ? n.additional : n.properties[f.at], to);
  }
  if (byte == braces(n)[2] && f.phase != Phase::kNextKey && (n.required & ~f.bits) == 0) {
    --t.depth;
    return finish(t, to);
  }
  if (before_key && can_have_key(t)) {
    const bool bare = n.form != ObjectForm::kJson;
    if (!bare && byte != '"') return;
    f.phase = Phase::kKey;
    f.at = 0;
    f.name = 0;
    f.more_names = true;
    f.count = 0;
    f.text = {};
    bare ? bare_key(std::move(t), byte, to) : to.push_back(std::move(t));
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
  if (f.text.mode == JsonText::Mode::kEscape && (byte == 'u' || (byte == '/' && !grammar_->escapes_slash))) return;
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
    if (others) f.name = with_byte(f.name, meant);
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

}  // namespace mneme

#include "src/text/grammar/pattern.h"

#include <algorithm>

#include "src/base/error.h"

namespace mneme {

namespace {
constexpr int kMaxRepeats = 64, kDeepest = 30;
using Set = std::bitset<128>;
}  // namespace

// Builds the position automaton: each character of the pattern is a state, and the end is reachable from every state.
class PatternParser {
 public:
  PatternParser(std::string_view text, Pattern& out) : text_(text), out_(out) {}

  void run() {
    out_.states_.emplace_back();
    Part whole{.first = 0, .last = 0, .empty = false};
    do {  // an anchor belongs to its alternative
      const bool from_start = skip('^');
      Part one = sequence(0);
      const bool to_end = skip('$');
      if (!from_start) one = joined(anything(), one);
      if (!to_end) one = joined(one, anything());
      whole = either(whole, one);
    } while (skip('|'));
    if (at_ != text_.size()) unsupported("this place");
    out_.states_[0].next |= whole.first;
    out_.accepting_ = whole.last | (whole.empty ? 1 : 0);
  }

 private:
  using States = Pattern::States;
  struct Part {
    States first = 0, last = 0;
    bool empty = true;
  };

  [[noreturn]] void unsupported(std::string_view what) const {
    fail(ErrorKind::kUnsupported, "pattern \"{}\", at {}: {} is not supported", text_.substr(0, 100), at_, what);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool skip(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  Part one(const Set& set) {
    if (set.none()) unsupported("a class without characters");
    if (out_.states_.size() == 64) unsupported("a pattern of more than 63 characters and classes");
    const States bit = States{1} << out_.states_.size();
    out_.states_.push_back({.enters = set});
    return {bit, bit, false};
  }
  void connect(States from, States to) {
    for (std::size_t i = 0; i < out_.states_.size(); ++i)
      if ((from >> i & 1) != 0) out_.states_[i].next |= to;
  }
  Part joined(const Part& a, const Part& b) {
    connect(a.last, b.first);
    return {a.first | (a.empty ? b.first : 0), b.last | (b.empty ? a.last : 0), a.empty && b.empty};
  }
  static Part either(const Part& a, const Part& b) { return {a.first | b.first, a.last | b.last, a.empty || b.empty}; }
  Part looped(Part p) {
    connect(p.last, p.first);
    return p;
  }
  Part anything() {
    Part p = looped(one(Set().set()));
    p.empty = true;
    return p;
  }

  Part alternatives(int depth) {
    if (depth > kDeepest) unsupported("nesting this deep");
    Part all = sequence(depth);
    while (skip('|')) all = either(all, sequence(depth));
    return all;
  }

  Part sequence(int depth) {
    Part all;
    while (at_ < text_.size() && peek() != '|' && peek() != ')') {
      if (peek() == '$' && depth == 0) break;
      all = joined(all, repeated(depth));
    }
    return all;
  }

  Part repeated(int depth) {
    const std::size_t from = at_;
    Part p = atom(depth);
    int least = 1, most = 1;
    bool endless = false;
    if (skip('*')) {
      least = 0;
      endless = true;
    } else if (skip('+')) {
      endless = true;
    } else if (skip('?')) {
      least = 0;
    } else if (skip('{')) {
      least = most = number();
      if (skip(',')) {
        endless = peek() == '}';
        if (!endless) most = number();
      }
      if (!skip('}') || most < least) unsupported("this repetition");
    } else {
      return p;
    }
    if (peek() == '?' || peek() == '+' || peek() == '*' || peek() == '{') unsupported("a repetition of a repetition");
    const std::size_t behind = at_;
    const auto again = [&] {  // a copy of the same part with its own states
      at_ = from;
      const Part copy = atom(depth);
      at_ = behind;
      return copy;
    };
    if (!endless && most == 0) unsupported("a repetition of nothing");
    Part all = p;
    for (int i = 1; i < least; ++i) all = joined(all, p = again());
    if (endless) {
      // The last copy loops.
      connect(p.last, p.first);
    } else {
      for (int i = std::max(least, 1); i < most; ++i) {
        Part more = again();
        more.empty = true;
        all = joined(all, more);
      }
    }
    if (least == 0) all.empty = true;
    return all;
  }

  int number() {
    int n = 0;
    if (peek() < '0' || peek() > '9') unsupported("this repetition");
    for (; peek() >= '0' && peek() <= '9'; ++at_)
      if ((n = n * 10 + (peek() - '0')) > kMaxRepeats) unsupported("so many repetitions");
    return n;
  }

  Part atom(int depth) {
    const char c = peek();
    if (skip('(')) {
      if (skip('?') && !skip(':')) unsupported("a group of this kind");
      const Part inside = alternatives(depth + 1);
      if (!skip(')')) unsupported("a group that does not end");
      return inside;
    }
    if (c == '[') return one(bracket());
    if (c == '.') {
      ++at_;
      Set all = Set().set();
      all.reset('\n').reset('\r');
      return one(all);
    }
    if (c == '\\') return one(escaped());
    if (std::string_view("*+?{^$").find(c) != std::string_view::npos) unsupported("this character");
    return one(single());
  }

  Set single() {
    const unsigned char c = peek();
    if (c >= 0x80) unsupported("a character beyond ASCII");
    ++at_;
    return Set().set(c);
  }

  Set escaped() {
    ++at_;
    const char c = peek();
    Set set;
    const auto add = [&](char from, char to) {
      for (char x = from; x <= to; ++x) set.set(static_cast<unsigned char>(x));
    };
    switch (c) {
      case 'd':
      case 'D':
        add('0', '9');
        break;
      case 'w':
      case 'W':
        add('0', '9');
        add('a', 'z');
        add('A', 'Z');
        set.set('_');
        break;
      case 's':
      case 'S':
        add('\t', '\r');
        set.set(' ');
        break;
      case 'n':
        set.set('\n');
        break;
      case 'r':
        set.set('\r');
        break;
      case 't':
        set.set('\t');
        break;
      default:
        if (c == '\0' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
          unsupported("this escape");
        return single();
    }
    ++at_;
    return c == 'D' || c == 'W' || c == 'S' ? ~set : set;
  }

  Set bracket() {
    ++at_;
    const bool negated = skip('^');
    Set all;
    bool any = false;
    while (at_ < text_.size() && peek() != ']') {
      any = true;
      const Set low = peek() == '\\' ? escaped() : single();
      const bool range = peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!range) {
        all |= low;
        continue;
      }
      ++at_;
      const Set high = peek() == '\\' ? escaped() : single();
      if (low.count() != 1 || high.count() != 1) unsupported("a range of classes");
      for (std::size_t c = low._Find_first(); c <= high._Find_first(); ++c) all.set(c);
    }
    if (!skip(']') || !any) unsupported("this class");
    return negated ? ~all : all;
  }

  std::string_view text_;
  Pattern& out_;
  std::size_t at_ = 0;
};

Pattern::Pattern(std::string_view text) {
  PatternParser(text, *this).run();
}

Pattern::States Pattern::step(States from, std::uint8_t character) const {
  if (character >= 128) return 0;
  States reach = 0, to = 0;
  for (std::size_t i = 0; i < states_.size(); ++i)
    if ((from >> i & 1) != 0) reach |= states_[i].next;
  for (std::size_t i = 1; i < states_.size(); ++i)
    if ((reach >> i & 1) != 0 && states_[i].enters.test(character)) to |= States{1} << i;
  return to;
}

}  // namespace mneme

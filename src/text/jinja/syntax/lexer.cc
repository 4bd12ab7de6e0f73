#include "src/text/jinja/syntax/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/text/jinja/value/text.h"
#include "src/text/unicode/unicode_case.h"
#include "src/text/unicode/utf8.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme::jinja {
namespace {

constexpr std::size_t kLargestTemplate = std::size_t{1} << 20;
constexpr std::size_t kNowhere = std::string_view::npos;

// Line ends as "\n"; one at the end of the template is removed.
std::string normalised(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || !is_ascii(c);
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalised(source)), text_(source_) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) data();
    push(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  char at(std::size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  bool here(std::string_view s) const { return text_.substr(at_, s.size()) == s; }
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(std::size_t to) {
    line_ += count32(std::count(text_.begin() + at_, text_.begin() + to, '\n'));
    line_begins_ = to > at_ && text_[to - 1] == '\n';
    at_ = to;
  }
  std::size_t after_space(std::size_t i) const {
    while (i < text_.size() && unicode::is_space(character_at(text_, i))) i += character_length(text_.substr(i));
    return i;
  }

  // The next "{{", "{%" or "{#" from here on.
  std::size_t next_tag() const {
    for (std::size_t i = at_; (i = text_.find('{', i)) != kNowhere; ++i)
      if (at(i + 1) == '{' || at(i + 1) == '%' || at(i + 1) == '#') return i;
    return kNowhere;
  }

  // Text up to a tag; its sign ("-", "+" or none) controls the white space before it.
  std::string_view before_tag(std::size_t tag, char sign, bool variable) const {
    std::string_view text = text_.substr(at_, tag - at_);
    if (sign == '-') {
      std::size_t end = 0;
      for (std::size_t i = 0; i < text.size();) {
        const std::size_t n = character_length(text.substr(i));
        if (!unicode::is_space(character_at(text, i))) end = i + n;
        i += n;
      }
      return text.substr(0, end);
    }
    if (sign == '+' || variable) return text;
    const std::size_t newline = text.rfind('\n');
    const std::size_t line = newline == kNowhere ? 0 : newline + 1;
    if (line == 0 && !line_begins_) return text;
    for (std::size_t i = line; i < text.size(); i += character_length(text.substr(i)))
      if (!unicode::is_space(character_at(text, i))) return text;
    return text.substr(0, line);
  }

  void data() {
    const std::size_t tag = next_tag();
    if (tag == kNowhere) {
      push(TokenKind::kData, std::string(text_.substr(at_)));
      return advance(text_.size());
    }
    const char kind = at(tag + 1);
    std::size_t inside = tag + 2;
    const char sign = at(inside) == '-' || at(inside) == '+' ? at(inside) : '\0';
    if (sign != '\0') ++inside;
    const std::string_view text = before_tag(tag, sign, kind == '{');
    if (!text.empty()) push(TokenKind::kData, std::string(text));
    advance(inside);
    if (kind == '#') return comment();
    if (kind == '%') {
      if (const auto end = raw_begin()) return raw(*end);
    }
    push(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, {});
    tag_inside(kind == '%');
  }

  // Offset after a tag's end `mark` at `i`, including white space that the tag strips.
  std::size_t after_end(std::size_t i, bool strips, bool trims) const {
    if (strips) return after_space(i);
    return trims && at(i) == '\n' ? i + 1 : i;
  }

  void comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == kNowhere) syntax_error(line_, "a comment does not end");
    const bool sign = end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+');
    advance(after_end(end + 2, sign && text_[end - 1] == '-', !sign));
  }

  // Where this is {% raw %}: the offset after its tag.
  std::optional<std::size_t> raw_begin() const {
    std::size_t i = after_space(at_);
    if (text_.substr(i, 3) != "raw") return std::nullopt;
    i = after_space(i + 3);
    const bool strips = at(i) == '-';
    if (strips) ++i;
    if (text_.substr(i, 2) != "%}") return std::nullopt;
    return strips ? after_space(i + 2) : i + 2;
  }

  void raw(std::size_t from) {
    const int began = line_;
    advance(from);
    for (std::size_t tag = at_; (tag = text_.find("{%", tag)) != kNowhere; ++tag) {
      std::size_t i = tag + 2;
      const char sign = at(i) == '-' || at(i) == '+' ? at(i++) : '\0';
      i = after_space(i);
      if (text_.substr(i, 6) != "endraw") continue;
      i = after_space(i + 6);
      const char end_sign = at(i) == '-' || at(i) == '+' ? at(i++) : '\0';
      if (text_.substr(i, 2) != "%}") continue;
      const std::string_view text = before_tag(tag, sign, false);
      if (!text.empty()) push(TokenKind::kData, std::string(text));
      return advance(after_end(i + 2, end_sign == '-', end_sign == '\0'));
    }
    syntax_error(began, "{% raw %} does not end");
  }

  // The end of the tag at this position, if there is one.
  std::optional<std::size_t> tag_end(bool block) const {
    const std::string_view mark = block ? "%}" : "}}";
    if (here(mark)) return after_end(at_ + 2, false, block);
    const char sign = at(at_);
    if (text_.substr(at_ + 1, 2) != mark) return std::nullopt;
    if (sign == '-') return after_end(at_ + 3, true, false);
    if (sign == '+' && block) return at_ + 3;
    return std::nullopt;
  }

  void tag_inside(bool block) {
    const int began = line_;
    brackets_.clear();
    while (at_ < text_.size()) {
      if (brackets_.empty()) {
        if (const auto end = tag_end(block)) {
          push(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, {});
          return advance(*end);
        }
      }
      const char c = text_[at_];
      if (unicode::is_space(character_at(text_, at_))) {
        advance(after_space(at_));
      } else if (is_digit(c)) {
        number();
      } else if (begins_name(c)) {
        std::size_t end = at_;
        while (end < text_.size() && (begins_name(text_[end]) || is_digit(text_[end]))) ++end;
        push(TokenKind::kName, std::string(text_.substr(at_, end - at_)));
        advance(end);
      } else if (c == '"' || c == '\'') {
        string(c);
      } else {
        op();
      }
    }
    syntax_error(began, block ? "a {% tag does not end" : "a {{ tag does not end");
  }

  // End of digits with single underscores between them, starting at `i`; i itself where there are none.
  std::size_t digits(std::size_t i, std::string_view allowed) const {
    const auto digit = [&](std::size_t k) { return k < text_.size() && allowed.find(text_[k]) != kNowhere; };
    if (!digit(i)) return i;
    while (digit(i) || (at(i) == '_' && digit(i + 1))) ++i;
    return i;
  }

  void number() {
    constexpr std::string_view kDecimal = "0123456789";
    const char base = to_lower(at(at_ + 1));
    if (text_[at_] == '0' && (base == 'x' || base == 'o' || base == 'b')) {
      const std::string_view allowed = base == 'x' ? "0123456789abcdefABCDEF" : base == 'o' ? "01234567" : "01";
      std::size_t from = at_ + 2;
      if (at(from) == '_') ++from;
      if (const std::size_t end = digits(from, allowed); end > from) return push_number(TokenKind::kInteger, end);
    }
    const std::size_t whole = digits(at_, kDecimal);
    std::size_t end = whole;
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';  // "a.0.1" is two indexes
    if (!after_dot) {
      if (at(end) == '.') {
        if (const std::size_t fraction = digits(end + 1, kDecimal); fraction > end + 1) end = fraction;
      }
      if ((at(end) | 0x20) == 'e') {
        const std::size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0;
        if (const std::size_t e = digits(end + 1 + sign, kDecimal); e > end + 1 + sign) end = e;
      }
    }
    push_number(end > whole ? TokenKind::kFloat : TokenKind::kInteger, end);
  }

  void push_number(TokenKind kind, std::size_t end) {
    std::string text(text_.substr(at_, end - at_));
    std::erase(text, '_');
    if (kind == TokenKind::kInteger && text.size() > 1 && text[0] == '0' && is_digit(text[1]) &&
        text.find_first_not_of('0') != std::string::npos)
      syntax_error(line_, "an integer begins with 0");
    push(kind, std::move(text));
    advance(end);
  }

  void string(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) syntax_error(line_, "a string does not end");
    push(TokenKind::kString, unescaped(text_.substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
  }

  // Appends the character of an escape with `most` digits (octal: up to `most`).
  std::size_t coded(std::string_view s, std::size_t i, std::size_t most, unsigned base, std::string& out) const {
    char32_t code = 0;
    std::size_t n = 0;
    for (; n < most && i + n < s.size(); ++n) {
      const char c = s[i + n];
      const unsigned digit = is_digit(c)                              ? static_cast<unsigned>(c - '0')
                             : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? static_cast<unsigned>((c | 0x20) - 'a') + 10
                                                                      : 99;
      if (digit >= base) break;
      code = code * base + digit;
    }
    if (base == 16 && n < most) syntax_error(line_, "an escape with too few digits");
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) syntax_error(line_, "an escape that is no character");
    append_utf8(out, code);
    return i + n;
  }

  std::string unescaped(std::string_view s) const {
    constexpr std::string_view kShort = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
    std::string out;
    for (std::size_t i = 0; i < s.size();) {
      const char c = s[i++];
      if (c != '\\' || i >= s.size()) {
        out += c;
        continue;
      }
      const char e = s[i++];
      if (const std::size_t k = kShort.find(e); k != kNowhere) {
        out += kMeant[k];
      } else if (e >= '0' && e <= '7') {
        i = coded(s, i - 1, 3, 8, out);
      } else if (e == 'x' || e == 'u' || e == 'U') {
        i = coded(s, i, e == 'x' ? 2 : e == 'u' ? 4 : 8, 16, out);
      } else if (e == 'N') {
        syntax_error(line_, "\\N{...} is not supported");
      } else if (e != '\n') {
        out += '\\';
        out += e;
      }
    }
    return out;
  }

  void op() {
    static constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto it = std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view o) { return here(o); });
    if (it == kOperators.end())
      syntax_error(line_,
                   fmt::format("unexpected character '{}'", text_.substr(at_, character_length(text_.substr(at_)))));
    const char c = (*it)[0];
    if (c == '(' || c == '[' || c == '{') brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (brackets_.empty()) syntax_error(line_, fmt::format("unexpected '{}'", c));
      if (brackets_.back() != c)
        syntax_error(line_, fmt::format("unexpected '{}', expected '{}'", c, brackets_.back()));
      brackets_.pop_back();
    }
    push(TokenKind::kOperator, std::string(*it));
    advance(at_ + it->size());
  }

  const std::string source_;
  const std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // the last token ended with a line
  std::vector<char> brackets_;
  std::vector<Token> tokens_;
};

}  // namespace

void syntax_error(int line, const std::string& what) {
  fail(ErrorKind::kFormat, "chat template, line {}: {}", line, what);
}

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kLargestTemplate)
    fail(ErrorKind::kFormat, "chat template: {} bytes; at most {} are read", source.size(), kLargestTemplate);
  if (const std::size_t at = find_invalid_utf8(source); at != kValidUtf8)
    fail(ErrorKind::kFormat, "chat template: byte {} is not UTF-8", at);
  return Lexer(source).run();
}

}  // namespace mneme::jinja

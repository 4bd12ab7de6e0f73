// Splits a template into tokens, with white space around tags removed as jinja2 does with trim_blocks and
// lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::jinja {

enum class TokenKind : std::uint8_t {
  kData,  // text outside of tags
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,   // unescaped
  kInteger,  // digits as written
  kFloat,
  kOperator,
  kEnd,  // end of the template
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;

  bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
  bool is_op(std::string_view op) const { return is(TokenKind::kOperator, op); }
  bool is_name(std::string_view name) const { return is(TokenKind::kName, name); }
};

// The last token is kEnd.
//
// Errors  kFormat: not UTF-8, larger than 1 MiB, an unterminated tag or string, unbalanced brackets, an unexpected
//         character; with the line.
std::vector<Token> tokenize(std::string_view source);

// Throws kFormat: "chat template, line 3: ...".
[[noreturn]] void syntax_error(int line, const std::string& what);

}  // namespace mneme::jinja

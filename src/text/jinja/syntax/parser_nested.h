// Recursion guard of the parser: brackets, operators and tags.
#pragma once

#include "src/text/jinja/syntax/parser.h"

namespace mneme::jinja {

// A number token's value. Errors  kFormat: out of range.
Value number_value(const Token& t);

class Parser::Nested {
 public:
  static constexpr int kDeepest = 150;

  explicit Nested(Parser& parser) : parser_(&parser) {
    if (++parser_->depth_ <= kDeepest) return;
    --parser_->depth_;
    syntax_error(parser_->now().line, "the template nests too deeply");
  }
  ~Nested() { --parser_->depth_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  Parser* parser_;
};

}  // namespace mneme::jinja

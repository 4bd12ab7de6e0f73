// Parser of template expressions; parser_statement.cc has the tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/text/jinja/syntax/ast.h"
#include "src/text/jinja/syntax/lexer.h"

namespace mneme::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Body parse_template();

 private:
  class Nested;  // counts nesting depth

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token take();
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  std::string take_name();
  [[noreturn]] void unexpected(std::string_view wanted) const;

  enum class Conditional : bool { kNo, kYes };
  // Comma-separated expressions form a tuple. `end`: a name that ends it.
  ExprPtr tuple(Conditional conditional, bool parenthesised = false, std::string_view end = {});
  bool at_tuple_end(std::string_view end) const;
  ExprPtr expression(Conditional conditional = Conditional::kYes);
  ExprPtr or_expression();
  ExprPtr and_expression();
  ExprPtr not_expression();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters = true);
  ExprPtr primary();
  ExprPtr postfix(ExprPtr node);
  ExprPtr filters(ExprPtr node);
  ExprPtr call(ExprPtr node);
  ExprPtr one_filter(ExprPtr node);
  ExprPtr test(ExprPtr node);
  ExprPtr subscript(ExprPtr node);
  ExprPtr subscript_part();
  ExprPtr list();
  ExprPtr dict();
  void arguments(Expr& call);
  std::string dotted_name();

  ExprPtr make(Expr::Op op, int line, std::string name = {}) const;
  // Adds a part and checks the height of the tree.
  void adopt(Expr& parent, ExprPtr part) const;
  void grow(Expr& parent, const Expr& part) const;
  ExprPtr two(Expr::Op op, const Token& at, ExprPtr a, ExprPtr b) const;

  Body statements(std::initializer_list<std::string_view> ends);
  Stmt tag();
  Stmt for_tag(int line);
  Stmt if_tag(int line);
  Stmt set_tag(int line);
  Stmt macro_tag(int line);
  Stmt call_tag(int line);
  Stmt filter_tag(int line);
  Stmt with_tag(int line);
  Target target(std::string_view end, bool attributes);
  Target one_target(bool attributes);
  void signature(MacroCode& macro);
  void macro_body(MacroCode& macro, std::string_view end);
  void end_block();

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;                   // enclosing loops within the same macro
  std::vector<MacroCode*> macros_;  // enclosing macros
};

}  // namespace mneme::jinja

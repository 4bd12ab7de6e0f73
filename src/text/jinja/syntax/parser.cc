#include "src/text/jinja/syntax/parser.h"

#include <algorithm>

#include "src/text/jinja/syntax/parser_nested.h"

namespace mneme::jinja {

using Op = Expr::Op;

namespace {

constexpr int kHighest = 150;

std::string shown(const Token& t) {
  switch (t.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kData:
      return "text";
    case TokenKind::kBlockBegin:
      return "{%";
    case TokenKind::kBlockEnd:
      return "%}";
    case TokenKind::kVariableBegin:
      return "{{";
    case TokenKind::kVariableEnd:
      return "}}";
    default:
      return "'" + t.text.substr(0, 40) + "'";
  }
}

}  // namespace

Token Parser::take() {
  Token t = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return t;
}

bool Parser::skip_op(std::string_view op) {
  if (!now().is_op(op)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!now().is_name(name)) return false;
  take();
  return true;
}

void Parser::unexpected(std::string_view wanted) const {
  syntax_error(now().line, fmt::format("expected {}, found {}", wanted, shown(now())));
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected(fmt::format("'{}'", op));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) unexpected(fmt::format("'{}'", name));
}

std::string Parser::take_name() {
  if (now().kind != TokenKind::kName) unexpected("a name");
  return take().text;
}

ExprPtr Parser::make(Op op, int line, std::string name) const {
  auto node = std::make_unique<Expr>();
  node->op = op;
  node->line = line;
  node->name = std::move(name);
  return node;
}

void Parser::grow(Expr& parent, const Expr& part) const {
  parent.height = std::max(parent.height, part.height + 1);
  if (parent.height > kHighest) syntax_error(parent.line, "an expression nests too deeply");
}

void Parser::adopt(Expr& parent, ExprPtr part) const {
  if (part != nullptr) grow(parent, *part);
  parent.parts.push_back(std::move(part));
}

ExprPtr Parser::two(Op op, const Token& at, ExprPtr a, ExprPtr b) const {
  ExprPtr node = make(op, at.line, at.text);
  adopt(*node, std::move(a));
  adopt(*node, std::move(b));
  return node;
}

bool Parser::at_tuple_end(std::string_view end) const {
  const TokenKind k = now().kind;
  if (k == TokenKind::kVariableEnd || k == TokenKind::kBlockEnd || now().is_op(")")) return true;
  return !end.empty() && now().is_name(end);
}

ExprPtr Parser::tuple(Conditional conditional, bool parenthesised, std::string_view end) {
  const int line = now().line;
  ExprPtr node = make(Op::kTuple, line);
  bool several = false;
  while (!at_tuple_end(end)) {
    adopt(*node, expression(conditional));
    if (!skip_op(",")) break;
    several = true;
  }
  if (several) return node;
  if (node->parts.empty()) {
    if (parenthesised) return node;
    unexpected("an expression");
  }
  return std::move(node->parts[0]);
}

ExprPtr Parser::expression(Conditional conditional) {
  const Nested nested(*this);
  if (conditional == Conditional::kNo) return or_expression();
  ExprPtr value = or_expression();
  while (now().is_name("if")) {
    ExprPtr node = make(Op::kIf, take().line);
    adopt(*node, or_expression());
    adopt(*node, std::move(value));
    adopt(*node, skip_name("else") ? expression() : nullptr);
    value = std::move(node);
  }
  return value;
}

ExprPtr Parser::or_expression() {
  ExprPtr left = and_expression();
  while (now().is_name("or")) {
    const Token op = take();
    left = two(Op::kOr, op, std::move(left), and_expression());
  }
  return left;
}

ExprPtr Parser::and_expression() {
  ExprPtr left = not_expression();
  while (now().is_name("and")) {
    const Token op = take();
    left = two(Op::kAnd, op, std::move(left), not_expression());
  }
  return left;
}

ExprPtr Parser::not_expression() {
  const Nested nested(*this);
  if (!now().is_name("not")) return comparison();
  ExprPtr node = make(Op::kNot, take().line);
  adopt(*node, not_expression());
  return node;
}

ExprPtr Parser::comparison() {
  ExprPtr first = sum();
  ExprPtr node;
  for (;;) {
    std::string op;
    const int line = now().line;
    for (const char* o : {"==", "!=", "<=", ">=", "<", ">"})
      if (op.empty() && skip_op(o)) op = o;
    if (op.empty() && skip_name("in")) op = "in";
    if (op.empty() && now().is_name("not") && next().is_name("in")) {
      take();
      take();
      op = "notin";
    }
    if (op.empty()) break;
    if (node == nullptr) {
      node = make(Op::kCompare, line);
      adopt(*node, std::move(first));
    }
    node->operators.push_back(op);
    adopt(*node, sum());
  }
  return node != nullptr ? std::move(node) : std::move(first);
}

ExprPtr Parser::sum() {
  ExprPtr left = concatenation();
  while (now().is_op("+") || now().is_op("-")) {
    const Token op = take();
    left = two(Op::kBinary, op, std::move(left), concatenation());
  }
  return left;
}

ExprPtr Parser::concatenation() {
  ExprPtr first = product();
  if (!now().is_op("~")) return first;
  ExprPtr node = make(Op::kConcat, now().line);
  adopt(*node, std::move(first));
  while (skip_op("~")) adopt(*node, product());
  return node;
}

ExprPtr Parser::product() {
  ExprPtr left = power();
  while (now().is_op("*") || now().is_op("/") || now().is_op("//") || now().is_op("%")) {
    const Token op = take();
    left = two(Op::kBinary, op, std::move(left), power());
  }
  return left;
}

ExprPtr Parser::power() {
  ExprPtr left = unary();
  while (now().is_op("**")) {
    const Token op = take();
    left = two(Op::kBinary, op, std::move(left), unary());
  }
  return left;
}

ExprPtr Parser::unary(bool with_filters) {
  const Nested nested(*this);
  ExprPtr node;
  if (now().is_op("-") || now().is_op("+")) {
    const Token sign = take();
    node = make(sign.text == "-" ? Op::kNegative : Op::kPositive, sign.line);
    adopt(*node, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters(std::move(node)) : std::move(node);
}

ExprPtr Parser::primary() {
  const Token t = now();
  if (t.kind == TokenKind::kName) {
    take();
    const auto constant = [&](Value v) {
      ExprPtr node = make(Op::kConstant, t.line);
      node->constant = std::move(v);
      return node;
    };
    if (t.text == "true" || t.text == "True") return constant(true);
    if (t.text == "false" || t.text == "False") return constant(false);
    if (t.text == "none" || t.text == "None") return constant(None{});
    if (!macros_.empty()) {
      MacroCode& macro = *macros_.back();
      macro.uses_varargs = macro.uses_varargs || t.text == "varargs";
      macro.uses_kwargs = macro.uses_kwargs || t.text == "kwargs";
      macro.uses_caller = macro.uses_caller || t.text == "caller";
    }
    return make(Op::kName, t.line, t.text);
  }
  if (t.kind == TokenKind::kString || t.kind == TokenKind::kInteger || t.kind == TokenKind::kFloat) {
    ExprPtr node = make(Op::kConstant, t.line);
    if (t.kind == TokenKind::kString) {
      std::string text;
      while (now().kind == TokenKind::kString) text += take().text;
      node->constant = Text(std::move(text));
    } else {
      node->constant = number_value(take());
    }
    return node;
  }
  if (skip_op("(")) {
    ExprPtr node = tuple(Conditional::kYes, true);
    expect_op(")");
    return node;
  }
  if (t.is_op("[")) return list();
  if (t.is_op("{")) return dict();
  unexpected("an expression");
}

ExprPtr Parser::list() {
  ExprPtr node = make(Op::kList, take().line);
  while (!now().is_op("]")) {
    if (!node->parts.empty()) expect_op(",");
    if (now().is_op("]")) break;
    adopt(*node, expression());
  }
  expect_op("]");
  return node;
}

ExprPtr Parser::dict() {
  ExprPtr node = make(Op::kDict, take().line);
  while (!now().is_op("}")) {
    if (!node->parts.empty()) expect_op(",");
    if (now().is_op("}")) break;
    adopt(*node, expression());
    expect_op(":");
    adopt(*node, expression());
  }
  expect_op("}");
  return node;
}

}  // namespace mneme::jinja

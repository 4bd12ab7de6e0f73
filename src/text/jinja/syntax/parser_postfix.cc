// Postfix expressions: subscripts, calls, filters and tests.
#include <charconv>

#include "src/text/jinja/syntax/parser_nested.h"

namespace mneme::jinja {

using Op = Expr::Op;

Value number_value(const Token& t) {
  if (t.kind == TokenKind::kFloat) {
    double v = 0;
    const auto [end, error] = std::from_chars(t.text.data(), t.text.data() + t.text.size(), v);
    if (error != std::errc()) syntax_error(t.line, "the number " + t.text + " is out of range");
    return v;
  }
  std::string_view digits = t.text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && (digits[1] & 0x40) != 0) {
    base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  std::int64_t v = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), v, base);
  if (error != std::errc()) syntax_error(t.line, "the number " + t.text + " does not fit 64 bits");
  return v;
}

ExprPtr Parser::call(ExprPtr node) {
  ExprPtr made = make(Op::kCall, now().line);
  adopt(*made, std::move(node));
  arguments(*made);
  return made;
}

ExprPtr Parser::postfix(ExprPtr node) {
  for (;;) {
    if (now().is_op(".") || now().is_op("[")) {
      node = subscript(std::move(node));
    } else if (now().is_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::filters(ExprPtr node) {
  for (;;) {
    if (now().is_op("|")) {
      node = one_filter(std::move(node));
    } else if (now().is_name("is")) {
      node = test(std::move(node));
    } else if (now().is_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

std::string Parser::dotted_name() {
  std::string name = take_name();
  while (skip_op(".")) name += "." + take_name();
  return name;
}

ExprPtr Parser::one_filter(ExprPtr node) {
  const int line = now().line;
  expect_op("|");
  ExprPtr filter = make(Op::kFilter, line, dotted_name());
  adopt(*filter, std::move(node));
  if (now().is_op("(")) arguments(*filter);
  return filter;
}

ExprPtr Parser::test(ExprPtr node) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExprPtr asked = make(Op::kTest, line, dotted_name());
  adopt(*asked, std::move(node));
  const Token& t = now();
  const bool word = t.kind == TokenKind::kName && t.text != "else" && t.text != "or" && t.text != "and";
  const bool value = t.kind == TokenKind::kString || t.kind == TokenKind::kInteger || t.kind == TokenKind::kFloat;
  if (t.is_op("(")) {
    arguments(*asked);
  } else if (word || value || t.is_op("[") || t.is_op("{")) {
    if (t.is_name("is")) syntax_error(t.line, "tests cannot be chained with 'is'");
    const Nested nested(*this);
    ExprPtr argument = postfix(primary());
    grow(*asked, *argument);
    asked->arguments.push_back(std::move(argument));
  }
  if (!negated) return asked;
  ExprPtr no = make(Op::kNot, line);
  adopt(*no, std::move(asked));
  return no;
}

ExprPtr Parser::subscript(ExprPtr node) {
  const Token op = take();
  if (op.text == ".") {
    const Token name = take();
    if (name.kind == TokenKind::kName) {
      ExprPtr attribute = make(Op::kAttribute, op.line, name.text);
      adopt(*attribute, std::move(node));
      return attribute;
    }
    if (name.kind != TokenKind::kInteger) syntax_error(name.line, "expected a name or a number behind '.'");
    ExprPtr index = make(Op::kConstant, name.line);
    index->constant = number_value(name);
    return two(Op::kItem, op, std::move(node), std::move(index));
  }
  std::vector<ExprPtr> parts;
  while (!now().is_op("]")) {
    if (!parts.empty()) expect_op(",");
    parts.push_back(subscript_part());
  }
  expect_op("]");
  if (parts.size() == 1 && parts[0]->op == Op::kSlice && parts[0]->parts[0] == nullptr) {
    grow(*parts[0], *node);
    parts[0]->parts[0] = std::move(node);
    return std::move(parts[0]);
  }
  if (parts.size() == 1) return two(Op::kItem, op, std::move(node), std::move(parts[0]));
  ExprPtr key = make(Op::kTuple, op.line);
  for (ExprPtr& p : parts) {
    if (p->op == Op::kSlice && p->parts[0] == nullptr) syntax_error(op.line, "a slice within a tuple");
    adopt(*key, std::move(p));
  }
  return two(Op::kItem, op, std::move(node), std::move(key));
}

ExprPtr Parser::subscript_part() {
  const int line = now().line;
  const auto ends = [&] { return now().is_op("]") || now().is_op(",") || now().is_op(":"); };
  ExprPtr begin = now().is_op(":") ? nullptr : expression();
  if (!skip_op(":")) return begin;
  ExprPtr node = make(Op::kSlice, line);
  node->parts.emplace_back();  // the sliced operand is set later
  adopt(*node, std::move(begin));
  adopt(*node, ends() ? nullptr : expression());
  adopt(*node, skip_op(":") && !ends() ? expression() : nullptr);
  return node;
}

void Parser::arguments(Expr& call) {
  expect_op("(");
  bool first = true;
  while (!now().is_op(")")) {
    if (!first) expect_op(",");
    if (!first && now().is_op(")")) break;
    first = false;
    if (now().is_op("*") || now().is_op("**")) syntax_error(now().line, "arguments by * and ** are not supported");
    if (now().kind == TokenKind::kName && next().is_op("=")) {
      std::string name = take().text;
      take();
      ExprPtr value = expression();
      grow(call, *value);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) syntax_error(now().line, "an argument without a name follows one with a name");
      ExprPtr value = expression();
      grow(call, *value);
      call.arguments.push_back(std::move(value));
    }
  }
  expect_op(")");
}

}  // namespace mneme::jinja

#include <algorithm>
#include <array>

#include "src/text/jinja/syntax/parser_nested.h"

namespace mneme::jinja {

using Kind = Stmt::Kind;

namespace {

Stmt make_statement(Kind kind, int line) {
  Stmt s;
  s.kind = kind;
  s.line = line;
  return s;
}

}  // namespace

Body parse(std::string_view source) {
  return Parser(tokenize(source)).parse_template();
}

Body Parser::parse_template() {
  Body body = statements({});
  if (now().kind != TokenKind::kEnd) unexpected("the end of the template");
  return body;
}

void Parser::end_block() {
  if (now().kind != TokenKind::kBlockEnd) unexpected("%}");
  take();
}

// Statements up to a tag with one of these names, which is not consumed; "{%" is.
Body Parser::statements(std::initializer_list<std::string_view> ends) {
  const Nested nested(*this);
  Body body;
  for (;;) {
    const Token& t = now();
    if (t.kind == TokenKind::kData) {
      Stmt s = make_statement(Kind::kText, t.line);
      s.text = Text(take().text);
      body.push_back(std::move(s));
    } else if (t.kind == TokenKind::kVariableBegin) {
      Stmt s = make_statement(Kind::kOutput, take().line);
      s.expr = tuple(Conditional::kYes);
      if (now().kind != TokenKind::kVariableEnd) unexpected("}}");
      take();
      body.push_back(std::move(s));
    } else if (t.kind == TokenKind::kBlockBegin) {
      const bool ended = std::any_of(ends.begin(), ends.end(), [&](std::string_view e) { return next().is_name(e); });
      take();
      if (ended) return body;
      body.push_back(tag());
    } else {
      if (t.kind == TokenKind::kEnd && ends.size() > 0) unexpected(fmt::format("{{% {} %}}", *ends.begin()));
      return body;
    }
  }
}

Stmt Parser::tag() {
  const int line = now().line;
  const std::string name = take_name();
  if (name == "for") return for_tag(line);
  if (name == "if") return if_tag(line);
  if (name == "set") return set_tag(line);
  if (name == "macro") return macro_tag(line);
  if (name == "call") return call_tag(line);
  if (name == "filter") return filter_tag(line);
  if (name == "with") return with_tag(line);
  if (name == "generation") {  // marks the assistant's text; no effect on rendering
    Stmt s = make_statement(Kind::kWith, line);
    end_block();
    s.body = statements({"endgeneration"});
    take();
    end_block();
    return s;
  }
  if (name == "break" || name == "continue") {
    if (loops_ == 0) syntax_error(line, name + " outside of a loop");
    end_block();
    return make_statement(name == "break" ? Kind::kBreak : Kind::kContinue, line);
  }
  constexpr std::array<std::string_view, 6> kKnown = {"include", "import", "from", "extends", "block", "autoescape"};
  if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end())
    syntax_error(line, "the tag '" + name + "' is not supported");
  syntax_error(line, "unknown tag '" + name + "'");
}

Stmt Parser::for_tag(int line) {
  Stmt s = make_statement(Kind::kFor, line);
  s.target = target("in", false);
  expect_name("in");
  s.expr = tuple(Conditional::kNo, false, "recursive");
  if (skip_name("if")) s.condition = expression();
  if (now().is_name("recursive")) syntax_error(line, "recursive loops are not supported");
  end_block();
  ++loops_;
  s.body = statements({"endfor", "else"});
  --loops_;
  if (take().text == "else") {
    end_block();
    s.otherwise = statements({"endfor"});
    take();
  }
  end_block();
  return s;
}

Stmt Parser::if_tag(int line) {
  Stmt s = make_statement(Kind::kIf, line);
  for (;;) {
    ExprPtr condition = tuple(Conditional::kNo);
    end_block();
    Body body = statements({"elif", "else", "endif"});
    s.branches.emplace_back(std::move(condition), std::move(body));
    if (skip_name("elif")) continue;
    if (skip_name("else")) {
      end_block();
      s.otherwise = statements({"endif"});
    }
    expect_name("endif");
    end_block();
    return s;
  }
}

Target Parser::one_target(bool attributes) {
  if (skip_op("(")) {
    Target t = target({}, attributes);
    expect_op(")");
    return t;
  }
  Target t;
  t.line = now().line;
  t.name = take_name();
  if (attributes && skip_op(".")) t.attribute = take_name();
  constexpr std::array<std::string_view, 6> kConstants = {"true", "True", "false", "False", "none", "None"};
  if (t.attribute.empty() && std::find(kConstants.begin(), kConstants.end(), t.name) != kConstants.end())
    syntax_error(t.line, "cannot assign to '" + t.name + "'");
  return t;
}

Target Parser::target(std::string_view end, bool attributes) {
  const Nested nested(*this);
  Target all;
  all.line = now().line;
  bool several = false;
  while (!at_tuple_end(end) && !now().is_op("=")) {
    all.several.push_back(one_target(attributes));
    if (!skip_op(",")) break;
    several = true;
  }
  if (all.several.empty()) unexpected("a name to assign to");
  if (several) return all;
  Target one = std::move(all.several[0]);
  return one;
}

Stmt Parser::set_tag(int line) {
  Stmt s = make_statement(Kind::kSet, line);
  s.target = target({}, true);
  if (skip_op("=")) {
    s.expr = tuple(Conditional::kYes);
    end_block();
    return s;
  }
  s.kind = Kind::kSetBlock;
  if (now().is_op("|")) {
    while (now().is_op("|")) s.expr = one_filter(std::move(s.expr));
  }
  end_block();
  s.body = statements({"endset"});
  take();
  end_block();
  return s;
}

void Parser::signature(MacroCode& macro) {
  expect_op("(");
  while (!now().is_op(")")) {
    if (!macro.parameters.empty()) expect_op(",");
    if (now().is_op(")")) unexpected("a name");
    std::string name = take_name();
    if (std::find(macro.parameters.begin(), macro.parameters.end(), name) != macro.parameters.end())
      syntax_error(now().line, "two parameters are called '" + name + "'");
    macro.parameters.push_back(std::move(name));
    if (skip_op("=")) {
      macro.defaults.push_back(expression());
    } else if (!macro.defaults.empty()) {
      syntax_error(now().line, "a parameter without a default follows one that has one");
    }
  }
  expect_op(")");
}

void Parser::macro_body(MacroCode& macro, std::string_view end) {
  const int loops = loops_;
  loops_ = 0;
  macros_.push_back(&macro);
  macro.body = std::make_shared<Body>(statements({end}));
  macros_.pop_back();
  loops_ = loops;
  take();
  end_block();
  // A name used in an inner macro is looked up in the outer ones too.
  if (macros_.empty()) return;
  macros_.back()->uses_caller = macros_.back()->uses_caller || macro.uses_caller;
}

Stmt Parser::macro_tag(int line) {
  Stmt s = make_statement(Kind::kMacro, line);
  s.macro = std::make_shared<MacroCode>();
  s.macro->name = take_name();
  macros_.push_back(s.macro.get());
  signature(*s.macro);
  macros_.pop_back();
  end_block();
  macro_body(*s.macro, "endmacro");
  return s;
}

Stmt Parser::call_tag(int line) {
  Stmt s = make_statement(Kind::kCall, line);
  s.macro = std::make_shared<MacroCode>();
  s.macro->name = "caller";
  if (now().is_op("(")) signature(*s.macro);
  s.expr = expression();
  if (s.expr->op != Expr::Op::kCall) syntax_error(line, "{% call %} needs a call");
  end_block();
  macro_body(*s.macro, "endcall");
  return s;
}

Stmt Parser::filter_tag(int line) {
  Stmt s = make_statement(Kind::kFilter, line);
  s.expr = make(Expr::Op::kFilter, line, dotted_name());
  s.expr->parts.emplace_back();
  if (now().is_op("(")) arguments(*s.expr);
  while (now().is_op("|")) s.expr = one_filter(std::move(s.expr));
  end_block();
  s.body = statements({"endfilter"});
  take();
  end_block();
  return s;
}

Stmt Parser::with_tag(int line) {
  Stmt s = make_statement(Kind::kWith, line);
  while (now().kind != TokenKind::kBlockEnd) {
    if (!s.assignments.empty()) expect_op(",");
    Target t = one_target(false);
    expect_op("=");
    s.assignments.emplace_back(std::move(t), expression());
  }
  end_block();
  s.body = statements({"endwith"});
  take();
  end_block();
  return s;
}

}  // namespace mneme::jinja

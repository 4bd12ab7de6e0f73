#include "src/text/jinja/run/eval.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/underlying.h"
#include "src/text/jinja/run/method.h"
#include "src/text/jinja/run/ops.h"
#include "src/text/jinja/value/print.h"

namespace mneme::jinja {

using Op = Expr::Op;

Value Evaluator::evaluate(const Expr& e, const ScopePtr& scope) {
  const Run::RecursionGuard deeper(*run_);
  run_->at_line(e.line);
  switch (e.op) {
    case Op::kConstant:
      return e.constant;
    case Op::kName:
      return name(e, *scope);
    case Op::kTuple:
    case Op::kList:
    case Op::kDict:
      return collection(e, scope);
    case Op::kNot:
    case Op::kNegative:
    case Op::kPositive:
      return unary(e, scope);
    case Op::kAnd:
    case Op::kOr:
    case Op::kIf:
      return conditional(e, scope);
    case Op::kBinary:
      return binary(e, scope);
    case Op::kConcat:
      return concatenated(e, scope);
    case Op::kCompare:
      return compare(e, scope);
    case Op::kAttribute:
      return attribute(*run_, evaluate(*e.parts[0], scope), e.name);
    case Op::kItem:
    case Op::kSlice:
      return subscript(e, scope);
    case Op::kCall:
    case Op::kTest:
      return applied(e, scope);
    case Op::kFilter:
      return through_filters(&e, {}, scope);
  }
  MNEME_CHECK(false, "expression {}", underlying(e.op));
}

Value Evaluator::unary(const Expr& e, const ScopePtr& scope) {
  const Value v = evaluate(*e.parts[0], scope);
  if (e.op == Op::kNot) return !truth(v);
  if (e.op == Op::kNegative) return negative(*run_, v);
  if (!v.is_number()) run_->error("'+' before '{}'", v.type_name());
  return v.boolean() != nullptr ? Value(v.as_integer()) : v;
}

// `and`, `or` and the inline `if`, which evaluate only the parts that they need.
Value Evaluator::conditional(const Expr& e, const ScopePtr& scope) {
  const Value first = evaluate(*e.parts[0], scope);
  const bool holds = truth(first);
  if (e.op == Op::kIf) {
    if (holds) return evaluate(*e.parts[1], scope);
    if (e.parts[2] != nullptr) return evaluate(*e.parts[2], scope);
    return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
  }
  return holds == (e.op == Op::kAnd) ? evaluate(*e.parts[1], scope) : first;
}

Value Evaluator::subscript(const Expr& e, const ScopePtr& scope) {
  const Value object = evaluate(*e.parts[0], scope);
  if (e.op == Op::kItem) return item(*run_, object, evaluate(*e.parts[1], scope));
  const auto bound = [&](std::size_t i) { return e.parts[i] != nullptr ? evaluate(*e.parts[i], scope) : Value(); };
  const Value begin = bound(1), end = bound(2);
  return subscript_slice(*run_, object, begin, end, bound(3));
}

// A call or a test, with its arguments.
Value Evaluator::applied(const Expr& e, const ScopePtr& scope) {
  const Value to = evaluate(*e.parts[0], scope);
  const Arguments with = arguments(e, scope);
  run_->at_line(e.line);
  return e.op == Op::kCall ? call(to, with, nullptr) : Value(apply_test(*run_, e.name, to, with));
}

// The innermost filter of a block's tag has no operand expression: it takes `value`.
Value Evaluator::through_filters(const Expr* filters, Value value, const ScopePtr& scope) {
  if (filters == nullptr) return value;
  const Run::RecursionGuard deeper(*run_);
  const Expr* inside = filters->parts[0].get();
  if (inside != nullptr) {
    value = inside->op == Op::kFilter ? through_filters(inside, std::move(value), scope) : evaluate(*inside, scope);
  }
  const Arguments with = arguments(*filters, scope);
  run_->at_line(filters->line);
  return apply_filter(*run_, filters->name, value, with);
}

Value Evaluator::name(const Expr& e, const Scope& scope) const {
  if (const Value* v = scope.find(e.name)) return *v;
  if (const Value* f = find_function(e.name)) return *f;
  return Value::undefined("'" + e.name + "' is undefined");
}

Value Evaluator::collection(const Expr& e, const ScopePtr& scope) {
  if (e.op == Op::kDict) {
    std::vector<std::pair<Value, Value>> items;
    for (std::size_t i = 0; i < e.parts.size(); i += 2) {
      Value key = evaluate(*e.parts[i], scope);
      put(*run_, items, std::move(key), evaluate(*e.parts[i + 1], scope));
    }
    return make_dict(*run_, std::move(items));
  }
  std::vector<Value> items;
  for (const ExprPtr& p : e.parts) items.push_back(evaluate(*p, scope));
  return make_list(*run_, std::move(items), e.op == Op::kList ? List::Kind::kList : List::Kind::kTuple);
}

Value Evaluator::concatenated(const Expr& e, const ScopePtr& scope) {
  TextBuilder out(*run_);
  for (const ExprPtr& p : e.parts) print(*run_, evaluate(*p, scope), out);
  return out.finish();
}

Value Evaluator::binary(const Expr& e, const ScopePtr& scope) {
  const Value left = evaluate(*e.parts[0], scope);
  const Value right = evaluate(*e.parts[1], scope);
  run_->at_line(e.line);
  if (e.name == "+") return add(*run_, left, right);
  return arithmetic(*run_, e.name == "//" ? 'd' : e.name == "**" ? 'p' : e.name[0], left, right);
}

Value Evaluator::compare(const Expr& e, const ScopePtr& scope) {
  Value left = evaluate(*e.parts[0], scope);
  for (std::size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.parts[i + 1], scope);
    run_->at_line(e.line);
    const std::string& op = e.operators[i];
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(*run_, left, right) == (op == "==");
    } else if (op == "in" || op == "notin") {
      holds = contains(*run_, right, left) == (op == "in");
    } else {
      const bool swapped = op[0] == '>';
      const Value &a = swapped ? right : left, &b = swapped ? left : right;
      holds = less(*run_, a, b) || (op.size() == 2 && equal(*run_, a, b));
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Arguments Evaluator::arguments(const Expr& e, const ScopePtr& scope) {
  Arguments out;
  for (const ExprPtr& a : e.arguments) out.positional.push_back(evaluate(*a, scope));
  for (const auto& [n, a] : e.named) {
    if (out.named_value(n) != nullptr) run_->error("argument '{}' is given twice", n);
    out.named.emplace_back(n, evaluate(*a, scope));
  }
  return out;
}

Value Evaluator::call(const Value& callee, const Arguments& arguments, const Value* caller) {
  if (callee.undefined() != nullptr) run_->error("{}", *callee.undefined()->why);
  const Callable* c = callee.callable();
  if (c == nullptr) run_->error("'{}' object is not callable", callee.type_name());
  if (c->kind == Callable::Kind::kMacro) return call_macro(*c, arguments, caller);
  if (caller != nullptr) run_->error("{{% call %}} needs a macro");
  if (c->kind == Callable::Kind::kMethod) return call_method(*run_, c->self, c->name, arguments);
  return call_function(*run_, c->name, arguments);
}

Value Evaluator::make_macro(const MacroCode& code, const ScopePtr& scope) {
  auto macro = std::make_shared<Callable>();
  macro->kind = Callable::Kind::kMacro;
  macro->name = code.name;
  macro->macro = &code;
  macro->scope = scope;
  run_->spend_memory(sizeof(Callable) + sizeof(ScopePtr));
  run_->keep(scope);
  return std::shared_ptr<const Callable>(std::move(macro));
}

Value Evaluator::call_macro(const Callable& callee, const Arguments& with, const Value* caller) {
  const MacroCode& code = *callee.macro;
  const std::size_t n = code.parameters.size();
  ScopePtr scope = inner(callee.scope);
  std::vector<Value> extra(with.positional.begin() + std::min(n, with.positional.size()), with.positional.end());
  if (!extra.empty() && !code.uses_varargs) run_->error("macro '{}' takes not more than {} arguments", code.name, n);
  std::vector<std::pair<Value, Value>> others;
  for (const auto& [key, value] : with.named) {
    const auto it = std::find(code.parameters.begin(), code.parameters.end(), key);
    if (it == code.parameters.end()) {
      if (key == "caller" && code.uses_caller) continue;
      if (!code.uses_kwargs) run_->error("macro '{}' takes no argument '{}'", code.name, key);
      others.emplace_back(make_text(key), value);
    } else if (it - code.parameters.begin() < std::ssize(with.positional)) {
      run_->error("macro '{}' got '{}' twice", code.name, key);
    }
  }
  const std::size_t first_default = n - code.defaults.size();
  for (std::size_t i = 0; i < n; ++i) {
    const std::string& key = code.parameters[i];
    if (i < with.positional.size()) {
      scope->set(key, with.positional[i]);
    } else if (const Value* named = with.named_value(key)) {
      scope->set(key, *named);
    } else if (i >= first_default) {
      scope->set(key, evaluate(*code.defaults[i - first_default], scope));
    } else {
      scope->set(key, Value::undefined("parameter '" + key + "' was not provided"));
    }
  }
  if (code.uses_varargs) scope->set("varargs", make_list(*run_, std::move(extra), List::Kind::kTuple));
  if (code.uses_kwargs) scope->set("kwargs", make_dict(*run_, std::move(others)));
  if (code.uses_caller) {
    const Value* given = with.named_value("caller");
    scope->set("caller", caller != nullptr  ? *caller
                         : given != nullptr ? *given
                                            : Value::undefined("No caller defined"));
  } else if (caller != nullptr) {
    run_->error("macro '{}' was invoked with two values for the special caller argument", code.name);
  }
  TextBuilder out(*run_);
  execute(*code.body, scope, out);
  return out.finish();
}

Evaluator::ScopePtr Evaluator::inner(const ScopePtr& scope) const {
  auto made = std::make_shared<Scope>();
  made->parent = scope;
  return made;
}

}  // namespace mneme::jinja

// Evaluates a syntax tree.
#pragma once

#include <memory>
#include <vector>

#include "src/text/jinja/run/call.h"
#include "src/text/jinja/syntax/ast.h"

namespace mneme::jinja {

class Evaluator {
 public:
  explicit Evaluator(Run& run) : run_(&run) {}

  enum class Flow : std::uint8_t { kOn, kBreak, kContinue };
  Flow execute(const Body& body, const std::shared_ptr<Scope>& scope, TextBuilder& out);
  Value evaluate(const Expr& e, const std::shared_ptr<Scope>& scope);

 private:
  using ScopePtr = std::shared_ptr<Scope>;

  Flow execute_one(const Stmt& s, const ScopePtr& scope, TextBuilder& out);
  Flow execute_if(const Stmt& s, const ScopePtr& scope, TextBuilder& out);
  Flow execute_for(const Stmt& s, const ScopePtr& scope, TextBuilder& out);
  Flow execute_with(const Stmt& s, const ScopePtr& scope, TextBuilder& out);
  void execute_output(const Expr& e, const ScopePtr& scope, TextBuilder& out);
  void execute_call(const Stmt& s, const ScopePtr& scope, TextBuilder& out);
  std::shared_ptr<const List> elements(const Stmt& s, const ScopePtr& scope);
  // Result of a block, passed through the filters of its tag.
  Value captured(const Stmt& s, const ScopePtr& scope);
  Value through_filters(const Expr* filters, Value value, const ScopePtr& scope);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);

  Value name(const Expr& e, const Scope& scope) const;
  Value unary(const Expr& e, const ScopePtr& scope);
  Value conditional(const Expr& e, const ScopePtr& scope);
  Value subscript(const Expr& e, const ScopePtr& scope);
  Value applied(const Expr& e, const ScopePtr& scope);
  Value compare(const Expr& e, const ScopePtr& scope);
  Value collection(const Expr& e, const ScopePtr& scope);
  Value concatenated(const Expr& e, const ScopePtr& scope);
  Value binary(const Expr& e, const ScopePtr& scope);
  Arguments arguments(const Expr& e, const ScopePtr& scope);
  Value call(const Value& callee, const Arguments& arguments, const Value* caller);
  Value call_macro(const Callable& callee, const Arguments& arguments, const Value* caller);
  Value make_macro(const MacroCode& code, const ScopePtr& scope);
  ScopePtr inner(const ScopePtr& scope) const;

  Run* run_;
};

}  // namespace mneme::jinja

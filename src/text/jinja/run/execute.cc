#include "src/base/check.h"
#include "src/base/underlying.h"
#include "src/text/jinja/jinja.h"
#include "src/text/jinja/run/eval.h"
#include "src/text/jinja/run/ops.h"
#include "src/text/jinja/value/print.h"

namespace mneme::jinja {

using Flow = Evaluator::Flow;

namespace {

// An expression of names and attributes as it was written; of others the beginning of it.
std::string spelled(const Expr& e) {
  if (e.op == Expr::Op::kName) return e.name;
  if (e.op == Expr::Op::kAttribute) return spelled(*e.parts[0]) + "." + e.name;
  if (e.op == Expr::Op::kItem && e.parts[1]->op == Expr::Op::kConstant && e.parts[1]->constant.text() != nullptr)
    return spelled(*e.parts[0]) + "['" + std::string(e.parts[1]->constant.text()->view()) + "']";
  return "an expression";
}

}  // namespace

Flow Evaluator::execute(const Body& body, const ScopePtr& scope, TextBuilder& out) {
  const Run::RecursionGuard deeper(*run_);
  for (const Stmt& s : body) {
    const Flow flow = execute_one(s, scope, out);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Flow Evaluator::execute_one(const Stmt& s, const ScopePtr& scope, TextBuilder& out) {
  run_->at_line(s.line);
  run_->spend_work(1);
  switch (s.kind) {
    case Stmt::Kind::kText:
      out.add(*s.text.text());
      return Flow::kOn;
    case Stmt::Kind::kOutput:
      execute_output(*s.expr, scope, out);
      return Flow::kOn;
    case Stmt::Kind::kIf:
      return execute_if(s, scope, out);
    case Stmt::Kind::kFor:
      return execute_for(s, scope, out);
    case Stmt::Kind::kSet:
      assign(s.target, evaluate(*s.expr, scope), scope);
      return Flow::kOn;
    case Stmt::Kind::kSetBlock:
      assign(s.target, captured(s, scope), scope);
      return Flow::kOn;
    case Stmt::Kind::kMacro:
      scope->set(s.macro->name, make_macro(*s.macro, scope));
      return Flow::kOn;
    case Stmt::Kind::kCall:
      execute_call(s, scope, out);
      return Flow::kOn;
    case Stmt::Kind::kFilter:
      print(*run_, captured(s, scope), out);
      return Flow::kOn;
    case Stmt::Kind::kWith:
      return execute_with(s, scope, out);
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  MNEME_CHECK(false, "statement {}", underlying(s.kind));
}

Flow Evaluator::execute_if(const Stmt& s, const ScopePtr& scope, TextBuilder& out) {
  for (const auto& [condition, body] : s.branches)
    if (truth(evaluate(*condition, scope))) return execute(body, scope, out);
  return execute(s.otherwise, scope, out);
}

// Elements of the loop: those for which its condition holds.
std::shared_ptr<const List> Evaluator::elements(const Stmt& s, const ScopePtr& scope) {
  const Value over = evaluate(*s.expr, scope);
  run_->at_line(s.line);
  auto all = to_list(*run_, over);
  if (s.condition == nullptr) return all;
  auto kept = std::make_shared<List>();
  kept->nesting = all->nesting;
  for (const Value& v : all->items) {
    const ScopePtr own = inner(scope);
    assign(s.target, v, own);
    if (truth(evaluate(*s.condition, own))) kept->items.push_back(v);
  }
  return kept;
}

void Evaluator::execute_output(const Expr& e, const ScopePtr& scope, TextBuilder& out) {
  const Value value = evaluate(e, scope);
  if (value.undefined() != nullptr && run_->undefined != nullptr && run_->undefined->empty())
    *run_->undefined = spelled(e);
  print(*run_, value, out);
}

Flow Evaluator::execute_for(const Stmt& s, const ScopePtr& scope, TextBuilder& out) {
  auto loop = std::make_shared<Loop>();
  loop->items = elements(s, scope);
  // loop.changed() may store the loop itself.
  struct Forget {
    Loop& loop;
    ~Forget() { loop.last_changed.clear(); }
  } const forget{*loop};
  const std::size_t n = loop->items->items.size();
  bool completed = false;  // an iteration ran to its end; as in jinja2, else runs where none did
  for (; loop->index < n; ++loop->index) {
    const ScopePtr own = inner(scope);
    own->set("loop", loop);
    assign(s.target, loop->items->items[loop->index], own);
    const Flow flow = execute(s.body, own, out);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kOn;
  }
  if (!completed) return execute(s.otherwise, inner(scope), out);
  return Flow::kOn;
}

Flow Evaluator::execute_with(const Stmt& s, const ScopePtr& scope, TextBuilder& out) {
  const ScopePtr own = inner(scope);
  std::vector<Value> values;
  for (const auto& [target, value] : s.assignments) values.push_back(evaluate(*value, scope));
  for (std::size_t i = 0; i < values.size(); ++i) assign(s.assignments[i].first, values[i], own);
  return execute(s.body, own, out);
}

void Evaluator::execute_call(const Stmt& s, const ScopePtr& scope, TextBuilder& out) {
  const Value caller = make_macro(*s.macro, scope);
  const Value callee = evaluate(*s.expr->parts[0], scope);
  const Arguments with = arguments(*s.expr, scope);
  run_->at_line(s.line);
  print(*run_, call(callee, with, &caller), out);
}

Value Evaluator::captured(const Stmt& s, const ScopePtr& scope) {
  const ScopePtr own = inner(scope);
  TextBuilder out(*run_);
  execute(s.body, own, out);
  return through_filters(s.expr.get(), out.finish(), own);
}

void Evaluator::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  run_->at_line(target.line);
  if (!target.several.empty()) {
    const auto parts = to_list(*run_, value);
    if (value.undefined() != nullptr || parts->items.size() != target.several.size()) {
      run_->error("{} values cannot be assigned to {} names", parts->items.size(), target.several.size());
    }
    for (std::size_t i = 0; i < parts->items.size(); ++i) assign(target.several[i], parts->items[i], scope);
    return;
  }
  if (target.attribute.empty()) return scope->set(target.name, value);
  const Value* object = scope->find(target.name);
  if (object == nullptr || object->name_space() == nullptr)
    run_->error("cannot assign attribute on non-namespace object '{}'", target.name);
  set_attribute(*run_, *object->name_space(), target.attribute, value);
}

Template::Template(std::string_view source) : body_(std::make_shared<const Body>(parse(source))) {}

Text Template::render(const Input& input) const {
  Run run(input.limits);
  run.now = input.now;
  run.undefined = input.undefined;
  auto globals = std::make_shared<Scope>();
  for (const auto& [name, value] : input.names) globals->set(name, value);
  auto scope = std::make_shared<Scope>();
  scope->parent = globals;
  TextBuilder out(run);
  Evaluator(run).execute(*body_, scope, out);
  return out.finish();
}

}  // namespace mneme::jinja

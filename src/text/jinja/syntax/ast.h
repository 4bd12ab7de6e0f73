// Syntax tree of a template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/text/jinja/value/value.h"

namespace mneme::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Op : std::uint8_t {
    kConstant,
    kName,   // name
    kTuple,  // parts
    kList,   // parts
    kDict,   // parts: key, value, key, value, ...
    kNot,    // parts[0]
    kNegative,
    kPositive,
    kAnd,  // parts[0], parts[1]
    kOr,
    kBinary,     // name: + - * / // % **
    kConcat,     // parts: operands of ~
    kCompare,    // parts[0], then parts[i + 1] compared by operators[i]
    kIf,         // parts: condition, value, else (may be null)
    kAttribute,  // parts[0].name
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], each may be null
    kCall,       // parts[0] with arguments
    kFilter,     // parts[0] | name; no parts where it filters a block
    kTest,       // parts[0] is name
  };
  Op op = Op::kConstant;
  int line = 1;
  int height = 1;
  Value constant;
  std::string name;
  std::vector<ExprPtr> parts;
  std::vector<std::string> operators;  // of kCompare: == != < <= > >= in notin
  std::vector<ExprPtr> arguments;      // of kCall, kFilter, kTest
  std::vector<std::pair<std::string, ExprPtr>> named;
};

// Target of a set or for: a name, a namespace's attribute, or several of them.
struct Target {
  std::string name;
  std::string attribute;        // empty: the name itself
  std::vector<Target> several;  // not empty: the value is unpacked
  int line = 1;
};

struct Stmt;
using Body = std::vector<Stmt>;

struct MacroCode {
  std::string name;  // empty: the body of a call block
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  std::shared_ptr<Body> body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Stmt {
  enum class Kind : std::uint8_t {
    kText,      // text
    kOutput,    // expr
    kIf,        // branches, then otherwise
    kFor,       // target in expr [if condition]: body, else
    kSet,       // target = expr
    kSetBlock,  // target = body [through the filters of expr]
    kMacro,     // macro
    kCall,      // expr, called with macro as caller
    kFilter,    // body through the filters of expr
    kWith,      // assignments, then body in its own scope
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 1;
  Value text;
  ExprPtr expr, condition;
  Target target;
  Body body, otherwise;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  std::shared_ptr<MacroCode> macro;
};

// Errors  kFormat: what jinja2 rejects too, unsupported tags and constructs, nesting beyond 100 levels; with the line.
Body parse(std::string_view source);

}  // namespace mneme::jinja

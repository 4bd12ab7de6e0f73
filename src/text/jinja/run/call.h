// Calls of functions, methods, filters and tests.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/text/jinja/value/value.h"

namespace mneme::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Null: not given.
  const Value* named_value(std::string_view name) const;
};

// Arguments bound to a function's parameter names.
//
// Errors  kRequest: too many arguments, an unknown name, an argument given twice.
class Parameters {
 public:
  Parameters(Run& run, std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> names);

  bool has(std::size_t i) const { return values_[i] != nullptr; }
  // Errors  kRequest: not given.
  const Value& at(std::size_t i) const;
  Value or_else(std::size_t i, Value otherwise) const {
    if (has(i)) return *values_[i];
    return otherwise;
  }
  bool flag(std::size_t i) const;
  // None counts as not given.
  const Value* something(std::size_t i) const;

 private:
  Run* run_;
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

// Errors  kRequest: an argument is given.
inline void expect_no_arguments(Run& run, std::string_view function, const Arguments& arguments) {
  const Parameters none(run, function, arguments, {});
}

// Errors (all below)  kRequest: no such filter or test, wrong arguments, and what Python would raise.
Value apply_filter(Run& run, std::string_view name, const Value& value, const Arguments& arguments);
bool apply_test(Run& run, std::string_view name, const Value& value, const Arguments& arguments);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

// range, dict, namespace, raise_exception, strftime_now; null for other names.
const Value* find_function(std::string_view name);
Value call_function(Run& run, std::string_view name, const Arguments& arguments);

}  // namespace mneme::jinja

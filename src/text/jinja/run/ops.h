// Python's operators on template values.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/function_ref.h"
#include "src/text/jinja/value/value.h"

namespace mneme::jinja {

// Errors (all below)  kRequest: what Python would raise, with the line of the template.

bool truth(const Value& v);
bool equal(Run& run, const Value& a, const Value& b);
bool less(Run& run, const Value& a, const Value& b);
// `item in container`.
bool contains(Run& run, const Value& container, const Value& item);

Value add(Run& run, const Value& a, const Value& b);
// op is one of - * / // % **, where "//" is written 'd' and "**" 'p'.
Value arithmetic(Run& run, char op, const Value& a, const Value& b);
Value negative(Run& run, const Value& a);

// Calls `element` for every element of a list, character of a string or key of a dict; never for undefined. Consumes a
// generator.
void for_each(Run& run, const Value& v, FunctionRef<void(const Value&)> element);
std::shared_ptr<const List> to_list(Run& run, const Value& v);
bool is_iterable(const Value& v);
std::size_t length(Run& run, const Value& v);

// obj[key]; undefined where absent.
Value item(Run& run, const Value& object, const Value& key);
// obj.name: a method, or the item of that name.
Value attribute(Run& run, const Value& object, std::string_view name);
// object[begin:end:step]; none for omitted parts.
Value subscript_slice(Run& run, const Value& object, const Value& begin, const Value& end, const Value& step);

// The value as an integer; `what` names it in the error.
std::int64_t expect_integer(Run& run, const Value& v, std::string_view what);
const Text& expect_text(Run& run, const Value& v, std::string_view what);
void expect_hashable(Run& run, const Value& v);
// Sets items[key] = value, replacing an existing entry.
void put(Run& run, std::vector<std::pair<Value, Value>>& items, Value key, Value value);

}  // namespace mneme::jinja

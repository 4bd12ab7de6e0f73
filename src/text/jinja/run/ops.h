// Python's operators on the values of a template.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/function_ref.h"
#include "src/tokenizer/jinja_value.h"

namespace mneme::jinja {

// Errors of all that follow  kRequest: what Python would raise, with the line of the template.

bool truth(const Value& v);
bool equal(Run& run, const Value& a, const Value& b);
bool less(Run& run, const Value& a, const Value& b);
// `item in container`.
bool contains(Run& run, const Value& container, const Value& item);

Value add(Run& run, const Value& a, const Value& b);
// op is one of - * / // % **, the last three written by their last character: "/" is '/', "//" is 'd', "**" is 'p'.
Value arithmetic(Run& run, char op, const Value& a, const Value& b);
Value negative(Run& run, const Value& a);

// Calls with every element: of a list, characters of a string, keys of a dict; nothing for undefined. A generator is
// used up.
void for_each(Run& run, const Value& v, FunctionRef<void(const Value&)> element);
std::shared_ptr<const List> to_list(Run& run, const Value& v);
bool is_iterable(const Value& v);
std::size_t length(Run& run, const Value& v);

// obj[key]; undefined where it is not there.
Value item(Run& run, const Value& object, const Value& key);
// obj.name: a method, or the item of that name.
Value attribute(Run& run, const Value& object, std::string_view name);
// object[begin:end:step]; none for those left out.
Value subscript_slice(Run& run, const Value& object, const Value& begin, const Value& end, const Value& step);

// The whole number that something must be given as.
std::int64_t expect_integer(Run& run, const Value& v, std::string_view what);
const Text& expect_text(Run& run, const Value& v, std::string_view what);
void expect_hashable(Run& run, const Value& v);
// Sets `key`, which may be there already, to `value`.
void put(Run& run, std::vector<std::pair<Value, Value>>& items, Value key, Value value);

}  // namespace mneme::jinja

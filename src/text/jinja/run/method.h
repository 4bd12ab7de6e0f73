// Methods and attributes of values: the non-mutating ones of Python's str, list, tuple and dict, and those of jinja2's
// loop and namespace.
#pragma once

#include <string_view>

#include "src/text/jinja/run/call.h"

namespace mneme::jinja {

// Undefined without a reason where the value has no such attribute; undefined with a reason where the sandbox forbids
// it (append, pop, update, ..., names that start with "_").
Value own_attribute(const Value& object, std::string_view name);

// Errors  kRequest: wrong arguments, and what Python would raise.
Value call_method(Run& run, const Value& self, std::string_view name, const Arguments& arguments);

// str's methods, called by call_method.
bool is_text_method(std::string_view name);
Value call_text_method(Run& run, const Text& self, std::string_view name, const Arguments& arguments);

// Helpers shared by filters and methods.
Text upper(Run& run, const Text& text);
Text lower(Run& run, const Text& text);
Text capitalize(Run& run, const Text& text);
Text strip(Run& run, const Text& text, const Value* characters, bool left, bool right);
Text replace(Run& run, const Text& text, const Text& from, const Text& to, std::int64_t count);
Text join(Run& run, const Text& between, const std::vector<Text>& parts);
Value split_lines(Run& run, const Text& text, bool keep_ends);
// Appends text[begin, end) in upper, lower or title case.
void add_case(Run& run, const Text& text, std::size_t begin, std::size_t end, unsigned char to, TextBuilder& out);

}  // namespace mneme::jinja

// Methods and attributes that values have of themselves: those of Python's str, list, tuple and dict that leave the
// value as it is, and those of jinja2's loop and namespace.
#pragma once

#include <string_view>

#include "src/tokenizer/jinja_call.h"

namespace mneme::jinja {

// Undefined, without a reason, where the value has none of this name; undefined with a reason where the sandbox forbids
// it (append, pop, update, ..., names that begin with "_").
Value own_attribute(const Value& object, std::string_view name);

// Errors  kRequest: wrong arguments, and what Python would raise.
Value call_method(Run& run, const Value& self, std::string_view name, const Arguments& arguments);

// str's, called by call_method.
bool is_text_method(std::string_view name);
Value call_text_method(Run& run, const Text& self, std::string_view name, const Arguments& arguments);

// Pieces that filters share with methods.
Text upper(Run& run, const Text& text);
Text lower(Run& run, const Text& text);
Text capitalize(Run& run, const Text& text);
Text strip(Run& run, const Text& text, const Value* characters, bool left, bool right);
Text replace(Run& run, const Text& text, const Text& from, const Text& to, std::int64_t count);
Text join(Run& run, const Text& between, const std::vector<Text>& parts);
Value split_lines(Run& run, const Text& text, bool keep_ends);
// Upper, lower or title case of text[begin, end).
void add_case(Run& run, const Text& text, std::size_t begin, std::size_t end, unsigned char to, TextBuilder& out);

}  // namespace mneme::jinja

// Values as text: Python's str() and repr(), and JSON as json.dumps writes it.
#pragma once

#include <string>

#include "src/tokenizer/jinja_value.h"

namespace mneme::jinja {

// The shortest digits that give the number again, as Python writes them: "1.0", "1e-07", "inf".
std::string real_text(double value);

void print(Run& run, const Value& v, TextBuilder& out);
Text to_text(Run& run, const Value& v);
void print_repr(Run& run, const Value& v, TextBuilder& out);

struct JsonStyle {
  bool ascii = false;  // escapes of all other characters
  bool sort_keys = false;
  bool lines = false;  // one element a line, each level `indent` further in
  std::string indent;
  std::string between = ", ", after_key = ": ";
};
// Errors  kRequest: what JSON has no form for.
void print_json(Run& run, const Value& v, const JsonStyle& style, TextBuilder& out);

}  // namespace mneme::jinja

// Values as text: Python's str() and repr(), and JSON as json.dumps writes it.
#pragma once

#include <string>

#include "src/text/jinja/value/value.h"

namespace mneme::jinja {

// Shortest decimal that round-trips, as Python writes it: "1.0", "1e-07", "inf".
std::string real_text(double value);

void print(Run& run, const Value& v, TextBuilder& out);
Text to_text(Run& run, const Value& v);
void print_repr(Run& run, const Value& v, TextBuilder& out);

struct JsonStyle {
  bool ascii = false;  // escape non-ASCII characters
  bool sort_keys = false;
  bool lines = false;  // one element per line, indented by `indent` per level
  std::string indent;
  std::string between = ", ", after_key = ": ";
};
// Errors  kRequest: a value that JSON cannot represent.
void print_json(Run& run, const Value& v, const JsonStyle& style, TextBuilder& out);

}  // namespace mneme::jinja

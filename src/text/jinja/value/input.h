// JSON as values of a template.
#pragma once

#include <nlohmann/json.hpp>

#include "src/tokenizer/jinja_value.h"

namespace mneme::jinja {

// Dicts in the order of the JSON. Every string, keys too, has this origin.
//
// Errors  kRequest: deeper than 100 levels, an integer beyond 64 bits, a string that is not UTF-8.
Value from_json(const nlohmann::ordered_json& json, Origin origin);

}  // namespace mneme::jinja

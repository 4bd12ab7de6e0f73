// Converts JSON to template values.
#pragma once

#include <nlohmann/json.hpp>

#include "src/text/jinja/value/value.h"

namespace mneme::jinja {

// Dicts keep the order of the JSON. Every string, keys too, gets this origin.
//
// Errors  kRequest: deeper than 100 levels, an integer beyond 64 bits, a string that is not UTF-8.
Value from_json(const nlohmann::ordered_json& json, Origin origin);

}  // namespace mneme::jinja

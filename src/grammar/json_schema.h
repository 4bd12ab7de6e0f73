// A JSON schema to what the matcher follows.
#pragma once

#include <nlohmann/json.hpp>

#include "src/grammar/json_nodes.h"

namespace mneme {

// Any JSON object.
JsonGrammar any_json_object();

// The documents of a schema: every one that the grammar lets through is valid. docs/grammars.md lists the keywords, and
// which valid documents it does not let through (too deep, numbers of many digits, ...).
//
// Errors  kUnsupported: a keyword that is not known, or not known in this place; a schema that nothing satisfies. The
//         message names the place. kRequest: not a schema (wrong types, a $ref to nowhere), too large.
JsonGrammar compile_json_schema(const nlohmann::ordered_json& schema);

}  // namespace mneme

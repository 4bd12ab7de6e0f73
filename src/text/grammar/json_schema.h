// Compiles a JSON schema.
#pragma once

#include <nlohmann/json.hpp>

#include "src/text/grammar/json_nodes.h"

namespace mneme {

// Any JSON object.
JsonGrammar any_json_object();

// Compiles a schema; every document that the grammar accepts is valid. docs/guide/grammars.md lists the keywords,
// docs/design/grammars.md which valid documents are rejected (too deep, numbers with many digits).
//
// Errors  kUnsupported: an unknown keyword, or one not supported in its place; an unsatisfiable schema; the message has
//         the path. kRequest: not a schema (wrong types, a dangling $ref), or too large.
JsonGrammar compile_json_schema(const nlohmann::ordered_json& schema);

}  // namespace mneme

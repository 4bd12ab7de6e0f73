// Compiles a JSON schema.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "src/text/grammar/json_nodes.h"

namespace mneme {

// Any JSON object.
JsonGrammar any_json_object();

// Order of the members of an object that says nothing about additionalProperties. kDeclared only if the schema was read
// in order: a nlohmann::json sorts members by name.
enum class MemberOrder : std::uint8_t { kAny, kDeclared };

// Compiles a schema; every document that the grammar accepts is valid. docs/guide/grammars.md lists the keywords,
// docs/design/grammars.md which valid documents are rejected (undeclared members, too deep, numbers with many
// digits). Numbers are compared exactly, as the schema holds them: read_exact_json() keeps their digits.
//
// Errors  kUnsupported: an unknown keyword, or one not supported in its place; an unsatisfiable schema; the message has
//         the path. kRequest: not a schema (wrong types, a dangling $ref), or too large.
JsonGrammar compile_json_schema(const nlohmann::ordered_json& schema, MemberOrder order = MemberOrder::kAny);

}  // namespace mneme

// References within a schema, and errors with a place in it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mneme {

[[noreturn]] void schema_unsupported(const std::string& path, std::string_view what);
[[noreturn]] void schema_wrong(const std::string& path, std::string_view what);

// It has an $id: references within it are relative to it.
bool is_schema_resource(const nlohmann::ordered_json& schema);

// What a $ref at `path` points to: a fragment's percent-encoding is decoded first, then ~1 and ~0 of the JSON pointer.
//
// Errors  kUnsupported: another document, or a place within a schema that has an $id of its own. kRequest: no string,
//         not well encoded, or no such place.
const nlohmann::ordered_json& resolve_reference(const nlohmann::ordered_json& document,
                                                const nlohmann::ordered_json& ref, const std::string& path);

}  // namespace mneme

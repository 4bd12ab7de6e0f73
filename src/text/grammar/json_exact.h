// JSON as written: members in their order, numbers with all their digits.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mneme {

// A number that neither an integer of 64 bits nor a double holds exactly is a binary value of its text. Bodies of
// requests and schemas that are read this way keep what compile_json_schema() needs: bounds digit by digit, members in
// order.
//
// Errors  kFormat: not JSON, nested deeper than 64 levels, a key twice in one object, or a number beyond a double
//         (`what` is named).
nlohmann::ordered_json read_exact_json(std::string_view text, std::string_view what);

// The text of a number of such a value.  Requires  v.is_number() or v.is_binary().
std::string number_text(const nlohmann::ordered_json& v);

// Some number in it is not held exactly by 64 bits.
bool has_long_number(const nlohmann::ordered_json& v);

}  // namespace mneme

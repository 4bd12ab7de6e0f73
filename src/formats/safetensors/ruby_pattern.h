// Regular expressions of a tokenizer.json, which are Ruby's (Oniguruma), as PCRE2 understands them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mneme {

// The same matches, where PCRE2 would read a pattern differently:
//
//   ^, $      match at every line                       (?m) in front
//   {n,m}+    the group again and again, not possessive + or * where n is 0 or 1
//   \h        a hexadecimal digit                       [0-9A-Fa-f]
//
// nullopt, with `why` set: what has no equal here, {n,m}+ with n above 1, \H, sets inside a class, (?m).
std::optional<std::string> pcre_of_ruby(std::string_view pattern, std::string& why);

}  // namespace mneme

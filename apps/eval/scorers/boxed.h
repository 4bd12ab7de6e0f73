// Final answers in LaTeX.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mneme::eval {

// What the last \boxed{...} or \fbox{...} holds, braces matched; "\boxed 5" holds what follows up to "$". None: there is
// none, or it does not close.
std::optional<std::string> last_boxed(std::string_view text);
// What the first \boxed{...} behind `mark` holds, with one level of braces inside. None: no mark, or no such box.
std::optional<std::string> first_boxed_behind(std::string_view text, std::string_view mark);

// The normal form of an answer: spaces, \left, units, \text{ ...}, "%", "x = " removed, fractions and roots with braces,
// 0.5 and integer a/b as \frac.
//
// Source  Hendrycks MATH's equivalence rules, by behaviour.
std::string normal_latex(std::string_view text);

}  // namespace mneme::eval

// Similarity of two lines of code, as fuzzywuzzy's `fuzz.ratio` gives it: an integer percentage.
#pragma once

#include <string_view>

namespace mneme::eval {

// With python-Levenshtein installed: 2 * longest common subsequence / sum of the lengths, in characters.
int levenshtein_percent(std::string_view a, std::string_view b);
// Without it: difflib's SequenceMatcher (Ratcliff-Obershelp), in a second text of 200 characters or more without its
// popular ones (above 1 % of it).
int difflib_percent(std::string_view a, std::string_view b);

// The line of an answer that LongBench compares: the first that holds none of "`", "#" and "//".
std::string_view first_code_line(std::string_view answer);

}  // namespace mneme::eval

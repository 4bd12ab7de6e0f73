// Words and characters of answers, cut as the suites' Python code cuts them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mneme::eval {

// Code points; bytes that form no character become U+FFFD.
std::u32string characters(std::string_view text);

// str.lower().
std::string lowered(std::string_view text);
// str.split(): at runs of white space.
std::vector<std::string> split_words(std::string_view text);
// str.split(separator): keeps empty parts.
std::vector<std::string_view> split_at(std::string_view text, char separator);
// str.strip().
std::string_view stripped(std::string_view text);
std::string replaced_all(std::string text, std::string_view what, std::string_view by);
// Runs of ASCII digits, in order.
std::vector<std::string> digit_runs(std::string_view text);

// LongBench's normalize_answer: lower case, without ASCII punctuation, articles become spaces, one space between words.
//
// Source  THUDM/LongBench metrics.py, by behaviour.
std::string normalised(std::string_view text);
// normalised() for Chinese, without white space: a word is a character (jieba's dictionary is not part of the project).
std::vector<std::string> normalised_characters(std::string_view text);

}  // namespace mneme::eval

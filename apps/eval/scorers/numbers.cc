// Numbers and boxed answers.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "apps/eval/scorers/boxed.h"
#include "apps/eval/scorers/scorer.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ascii.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

bool has_digit(std::string_view text, std::size_t i) {
  return i < text.size() && text[i] >= '0' && text[i] <= '9';
}

// Numbers of a text, with sign and fraction, thousands' commas removed: "$1,234.50." is 1234.5.
std::vector<double> numbers_in(std::string_view text) {
  std::vector<double> numbers;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!has_digit(text, i) && !(text[i] == '.' && has_digit(text, i + 1))) continue;
    std::string number;
    const bool minus = i > 0 && text[i - 1] == '-' && (i < 2 || !is_letter_or_digit(text[i - 2]));
    bool point = false;
    for (; i < text.size(); ++i) {
      if (text[i] == ',' && has_digit(text, i + 1) && has_digit(text, i + 2) && has_digit(text, i + 3)) continue;
      if (text[i] == '.' && (point || !has_digit(text, i + 1))) break;
      if (!has_digit(text, i) && text[i] != '.') break;
      point = point || text[i] == '.';
      number += text[i];
    }
    double value = 0;
    std::from_chars(number.data(), number.data() + number.size(), value);
    numbers.push_back(minus ? -value : value);
  }
  return numbers;
}

bool equal_numbers(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max({1.0, std::abs(a), std::abs(b)});
}

template <typename F>
double any_answer(const Reference& reference, F&& is) {
  return std::any_of(reference.answers.begin(), reference.answers.end(), is) ? 1 : 0;
}

// The first `\d+\.\d+|\d+`.
std::string first_plain_number(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size() && !has_digit(text, i)) ++i;
  std::size_t end = i;
  while (has_digit(text, end)) ++end;
  if (end > i && end < text.size() && text[end] == '.' && has_digit(text, end + 1))
    for (++end; has_digit(text, end);) ++end;
  return std::string(text.substr(std::min(i, text.size()), end - i));
}

std::string without_spaces(std::string text) {
  return replaced_all(std::move(text), " ", "");
}

}  // namespace

double score_first_digits(std::string_view answer, const Reference& reference) {
  const auto runs = digit_runs(answer);
  return any_answer(reference, [&](const std::string& r) { return !runs.empty() && runs.front() == r; });
}

double score_first_number(std::string_view answer, const Reference& reference) {
  const std::string first = first_plain_number(answer);
  return any_answer(reference, [&](const std::string& r) {
    const auto wanted = numbers_in(r), found = numbers_in(first);
    return !wanted.empty() && !found.empty() && equal_numbers(wanted.front(), found.front());
  });
}

double score_last_number(std::string_view answer, const Reference& reference) {
  const auto found = numbers_in(answer);
  return any_answer(reference, [&](const std::string& r) {
    const auto wanted = numbers_in(r);
    return !wanted.empty() && !found.empty() && equal_numbers(wanted.back(), found.back());
  });
}

// Signs are ignored: digit runs are compared, as the suite does.
double score_number_list(std::string_view answer, const Reference& reference) {
  const auto found = digit_runs(answer);
  std::size_t right = 0;
  while (right < std::min(found.size(), reference.answers.size())) {
    const auto wanted = digit_runs(reference.answers[right]);
    if (wanted.empty() || wanted.front() != found[right]) break;
    ++right;
  }
  return ratio(right, reference.answers.size());
}

double score_last_word(std::string_view answer, const Reference& reference) {
  std::string text(answer);
  for (char& c : text)
    if (std::string_view("\n.`'\":").find(c) != std::string_view::npos) c = ' ';
  const auto words = split_words(text);
  return any_answer(reference, [&](const std::string& r) { return !words.empty() && words.back() == r; });
}

double score_boxed(std::string_view answer, const Reference& reference) {
  const auto found = last_boxed(answer);
  return any_answer(reference, [&](const std::string& r) { return found && normal_latex(*found) == normal_latex(r); });
}

double score_boxed_final(std::string_view answer, const Reference& reference) {
  const auto found = first_boxed_behind(answer, "**Final Answer**");
  return any_answer(reference,
                    [&](const std::string& r) { return found && without_spaces(*found) == without_spaces(r); });
}

double score_aime(std::string_view answer, const Reference& reference) {
  const auto integer = [](std::string_view text) -> std::optional<long> {
    std::string digits;
    for (const std::string& run : digit_runs(text)) digits += run;
    long value = 0;
    if (digits.empty() || std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc())
      return {};
    return value;
  };
  const auto found = last_boxed(answer);
  const auto value = found ? integer(*found) : std::nullopt;
  return any_answer(reference, [&](const std::string& r) { return value && value == integer(r); });
}

}  // namespace mneme::eval

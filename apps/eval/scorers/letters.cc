// Multiple choice: the reference's first answer is the letter; InfiniteBench has the option's text before it.
#include <algorithm>
#include <array>
#include <cctype>

#include "apps/eval/scorers/scorer.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ascii.h"

namespace mneme::eval {
namespace {

bool is_letter_at(std::string_view text, std::size_t at) {
  return at < text.size() && text[at] >= 'A' && text[at] <= 'D';
}
bool is_word_at(std::string_view text, std::size_t at) {
  return at < text.size() && (is_letter_or_digit(text[at]) || text[at] == '_');
}

// The letter of an answer in the forms that models give: "B", "(B)", "Answer: B", "The correct answer is **B**", "B) ...".
// The last announced one counts; without an announcement, the first letter that is a word of its own. '\0': none.
char letter_of(std::string_view answer) {
  const std::string low = lowered(answer);
  char found = '\0';
  for (std::string_view mark : {"answer is", "answer:", "option is", "choice is", "boxed{"}) {
    for (std::size_t at = low.find(mark); at != std::string::npos; at = low.find(mark, at + 1)) {
      std::size_t i = at + mark.size();
      while (i < low.size() && std::string_view(" :(*$\"'{\\").find(low[i]) != std::string_view::npos) ++i;
      if (low.size() == answer.size() && is_letter_at(answer, i) && !is_word_at(answer, i + 1)) found = answer[i];
    }
  }
  for (std::size_t i = 0; i < answer.size() && found == '\0'; ++i) {
    if (!is_letter_at(answer, i) || is_word_at(answer, i + 1) || (i > 0 && is_word_at(answer, i - 1))) continue;
    const bool article = answer[i] == 'A' && i + 2 < answer.size() && answer[i + 1] == ' ' && is_lower(answer[i + 2]);
    if (!article) found = answer[i];
  }
  return found;
}

// InfiniteBench's prefixes, in their order.
constexpr std::array<std::string_view, 4> kPrefixes = {"answer is:", "answer:", "answer is", "option is"};

// The text behind the first prefix that the answer holds and one character; empty: none.
std::string_view behind_prefix(std::string_view answer) {
  for (std::string_view prefix : kPrefixes)
    if (const std::size_t at = answer.find(prefix); at != std::string_view::npos)
      return answer.substr(std::min(at + prefix.size() + 1, answer.size()));
  return {};
}

}  // namespace

double score_letter(std::string_view answer, const Reference& reference) {
  const char letter = letter_of(answer);
  return letter != '\0' && reference.answers.back() == std::string(1, letter) ? 1 : 0;
}

double score_longbench_v2(std::string_view answer, const Reference& reference) {
  const std::string text = replaced_all(std::string(answer), "*", "");
  static constexpr std::string_view kMark = "The correct answer is ";
  for (const bool bracket : {true, false})
    for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + 1)) {
      std::size_t i = at + kMark.size();
      if (bracket && (i >= text.size() || text[i++] != '(')) continue;
      if (!is_letter_at(text, i)) continue;
      if (bracket && (i + 1 >= text.size() || text[i + 1] != ')')) continue;
      return reference.answers.front() == std::string(1, text[i]) ? 1 : 0;
    }
  return 0;
}

// The first match of (?i)Answer[ \t]*:[ \t]*\$?([A-D])\$?, as simple-evals extracts it.
double score_gpqa(std::string_view answer, const Reference& reference) {
  const std::string low = lowered(answer);
  for (std::size_t at = low.find("answer"); at != std::string::npos; at = low.find("answer", at + 1)) {
    std::size_t i = at + 6;
    const auto skip_blanks = [&] {
      while (i < low.size() && (low[i] == ' ' || low[i] == '\t')) ++i;
    };
    skip_blanks();
    if (i >= low.size() || low[i++] != ':') continue;
    skip_blanks();
    if (i < low.size() && low[i] == '$') ++i;
    if (i >= low.size() || low[i] < 'a' || low[i] > 'd') continue;
    const char letter = to_upper(low[i]);
    return reference.answers.front() == std::string(1, letter) ? 1 : 0;
  }
  return 0;
}

double score_infinitebench_choice(std::string_view answer, const Reference& reference) {
  const std::string_view text = stripped(answer);
  const auto is_label = [&](std::string_view s) {
    return std::find(reference.answers.begin(), reference.answers.end(), s) != reference.answers.end();
  };
  if (text.empty()) return 0;
  if (is_letter_at(text, 0)) return is_label(text.substr(0, 1)) ? 1 : 0;
  if (is_label(text)) return 1;
  std::string plain(text);
  for (char& c : plain)
    if (std::string_view("\n\"'.,?!{}").find(c) != std::string_view::npos) c = ' ';
  for (std::string_view prefix : kPrefixes) {
    const std::size_t at = plain.find(prefix);
    if (at == std::string::npos) continue;
    const std::string_view behind = std::string_view(plain).substr(std::min(at + prefix.size() + 1, plain.size()));
    return std::any_of(reference.answers.begin(), reference.answers.end(),
                       [&](const std::string& label) { return behind.starts_with(label); })
               ? 1
               : 0;
  }
  // The first word that is a part of "ABCD" decides.
  for (const std::string& word : split_words(plain))
    if (std::string_view("ABCD").find(word) != std::string_view::npos) return is_label(word) ? 1 : 0;
  return 0;
}

// References: the function's name, then the letter.
double score_code_debug(std::string_view answer, const Reference& reference) {
  const std::string_view text = stripped(answer);
  const std::string& name = reference.answers.front();
  const std::string& letter = reference.answers.back();
  if (text.starts_with(letter + ".") || text.starts_with(letter + ":")) return 1;
  const std::string_view behind = behind_prefix(text);
  return !behind.empty() && (behind.starts_with(letter) || behind.starts_with(name)) ? 1 : 0;
}

}  // namespace mneme::eval

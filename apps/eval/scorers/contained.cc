// Equality and substrings.
#include <algorithm>
#include <cctype>

#include "apps/eval/scorers/scorer.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ascii.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

template <typename F>
bool any_of(const Reference& reference, F&& is) {
  return std::any_of(reference.answers.begin(), reference.answers.end(), is);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// RULER's answer: control characters become line ends.
std::string ruler_text(std::string_view answer) {
  std::string text(stripped(answer));
  for (char& c : text)
    if (byte_of(c) < 0x20) c = '\n';
  return lowered(stripped(text));
}

// An event's words without those that any plan has.
std::vector<std::string> event_words(std::string_view event) {
  std::vector<std::string> words;
  for (const std::string& w : split_words(normalised(event)))
    if (w.size() > 3) words.push_back(w);
  return words;
}

}  // namespace

double score_exact(std::string_view answer, const Reference& reference) {
  return any_of(reference, [&](const std::string& r) { return stripped(answer) == stripped(r); }) ? 1 : 0;
}

double score_normalised(std::string_view answer, const Reference& reference) {
  const std::string text = normalised(answer);
  return any_of(reference, [&](const std::string& r) { return text == normalised(r); }) ? 1 : 0;
}

// Whole words: "123" does not contain "12".
double score_contained(std::string_view answer, const Reference& reference) {
  const std::string text = " " + normalised(answer) + " ";
  const auto is = [&](const std::string& r) {
    const std::string part = normalised(r);
    return !part.empty() && contains(text, " " + part + " ");
  };
  return any_of(reference, is) ? 1 : 0;
}

double score_contains_all(std::string_view answer, const Reference& reference) {
  const std::string text = ruler_text(answer);
  const auto found = std::count_if(reference.answers.begin(), reference.answers.end(),
                                   [&](const std::string& r) { return contains(text, lowered(r)); });
  return ratio(found, reference.answers.size());
}

double score_contains_any(std::string_view answer, const Reference& reference) {
  const std::string text = ruler_text(answer);
  return any_of(reference, [&](const std::string& r) { return contains(text, lowered(r)); }) ? 1 : 0;
}

double score_word(std::string_view answer, const Reference& reference) {
  std::string text(answer);
  for (char& c : text)
    if (contains("\n:\"'.,?!{}", std::string_view(&c, 1))) c = ' ';
  const auto words = split_words(text);
  return any_of(reference,
                [&](const std::string& r) { return std::find(words.begin(), words.end(), r) != words.end(); })
             ? 1
             : 0;
}

double score_dialogue(std::string_view answer, const Reference& reference) {
  std::string text(answer);
  for (char& c : text) c = contains("\n:\"'.,?!{}", std::string_view(&c, 1)) ? ' ' : to_upper(c);
  const auto words = split_words(text);
  return std::find(words.begin(), words.end(), reference.answers.front()) != words.end() ? 1 : 0;
}

double score_event_words(std::string_view answer, const Reference& reference) {
  const std::string text = " " + normalised(answer) + " ";
  double found = 0, all = 0;
  for (const std::string& event : reference.answers) {
    const auto words = event_words(event);
    ++all;
    found += std::all_of(words.begin(), words.end(), [&](const std::string& w) { return contains(text, w); }) ? 1 : 0;
  }
  return found / all;
}

}  // namespace mneme::eval

// Overlap of an answer with its references: words, characters, ROUGE-L, lines of code.
#include <algorithm>
#include <map>

#include "apps/eval/scorers/edit_similarity.h"
#include "apps/eval/scorers/rouge.h"
#include "apps/eval/scorers/scorer.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

double overlap(const std::vector<std::string>& answer, const std::vector<std::string>& reference) {
  std::map<std::string, int> left;
  for (const std::string& w : reference) ++left[w];
  double same = 0;
  for (const std::string& w : answer)
    if (left[w]-- > 0) ++same;
  if (same == 0) return 0;
  const double precision = ratio(same, answer.size());
  const double recall = ratio(same, reference.size());
  return 2 * precision * recall / (precision + recall);
}

template <typename F>
double best(const Reference& reference, F&& score) {
  double most = 0;
  for (const std::string& r : reference.answers) most = std::max(most, score(r));
  return most;
}

Sentences sentence_of_characters(std::string_view text) {
  std::vector<std::string> words = normalised_characters(text);
  return words.empty() ? Sentences() : Sentences{std::move(words)};
}

}  // namespace

double score_f1(std::string_view answer, const Reference& reference) {
  const auto words = split_words(normalised(answer));
  return best(reference, [&](const std::string& r) { return overlap(words, split_words(normalised(r))); });
}

double score_f1_characters(std::string_view answer, const Reference& reference) {
  const auto all = normalised_characters(answer);
  return best(reference, [&](const std::string& r) { return overlap(all, normalised_characters(r)); });
}

double score_rouge_l(std::string_view answer, const Reference& reference) {
  return best(reference, [&](const std::string& r) { return rouge_l(answer, r); });
}

double score_rouge_l_characters(std::string_view answer, const Reference& reference) {
  const Sentences all = sentence_of_characters(answer);
  return best(reference, [&](const std::string& r) { return rouge_l_of(all, sentence_of_characters(r)); });
}

double score_rouge_l_sum(std::string_view answer, const Reference& reference) {
  return best(reference, [&](const std::string& r) { return rouge_l_sum(answer, r); });
}

double score_code(std::string_view answer, const Reference& reference) {
  const std::string_view line = first_code_line(answer);
  return best(reference, [&](const std::string& r) { return levenshtein_percent(line, r) / 100.0; });
}

double score_code_difflib(std::string_view answer, const Reference& reference) {
  const std::string_view line = first_code_line(answer);
  return best(reference, [&](const std::string& r) { return difflib_percent(line, r) / 100.0; });
}

}  // namespace mneme::eval

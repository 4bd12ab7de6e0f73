// LongBench's classes, paragraph numbers and counts.
#include <algorithm>

#include "apps/eval/scorers/scorer.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

double share_of(const std::vector<std::string>& numbers, const std::string& wanted) {
  if (numbers.empty()) return 0;
  return ratio(std::count(numbers.begin(), numbers.end(), wanted), numbers.size());
}

// The digits behind the first `word` that digits follow; empty: there is none.
std::string number_behind(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    std::string digits;
    for (char c : text.substr(at + word.size())) {
      if (c < '0' || c > '9') break;
      digits += c;
    }
    if (!digits.empty()) return digits;
  }
  return {};
}

double paragraph_score(std::string_view answer, const Reference& reference, std::string_view word) {
  double most = 0;
  for (const std::string& r : reference.answers)
    most = std::max(most, share_of(digit_runs(answer), number_behind(r, word)));
  return most;
}

}  // namespace

// Classes in the answer, less those that are a part of the right one. The published loop removes elements of the list
// it walks, so that the one behind a removed one is never looked at; scores depend on it.
double score_classification(std::string_view answer, const Reference& reference) {
  double most = 0;
  for (const std::string& gold : reference.answers) {
    std::vector<std::string_view> found;
    for (const std::string& label : reference.classes)
      if (answer.find(label) != std::string_view::npos) found.push_back(label);
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i] != gold && gold.find(found[i]) != std::string::npos)
        // list.remove() removes the first equal element.
        found.erase(std::find(found.begin(), found.end(), found[i]));
    if (std::find(found.begin(), found.end(), gold) != found.end()) most = std::max(most, ratio(1, found.size()));
  }
  return most;
}

double score_retrieval(std::string_view answer, const Reference& reference) {
  return paragraph_score(answer, reference, "Paragraph ");
}

double score_retrieval_zh(std::string_view answer, const Reference& reference) {
  return paragraph_score(answer, reference, "段落");
}

double score_count(std::string_view answer, const Reference& reference) {
  double most = 0;
  for (const std::string& r : reference.answers) most = std::max(most, share_of(digit_runs(answer), r));
  return most;
}

}  // namespace mneme::eval

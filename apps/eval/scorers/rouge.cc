#include "apps/eval/scorers/rouge.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "apps/eval/scorers/words.h"
#include "src/base/ascii.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

using Words = std::vector<std::string>;

// Lengths of longest common subsequences of prefixes: of i words of `a` and j of `b`.
class LcsTable {
 public:
  LcsTable(const Words& a, const Words& b) : columns_(b.size() + 1), lengths_((a.size() + 1) * columns_) {
    for (std::size_t i = 1; i <= a.size(); ++i)
      for (std::size_t j = 1; j <= b.size(); ++j)
        at(i, j) = a[i - 1] == b[j - 1] ? at(i - 1, j - 1) + 1 : std::max(at(i - 1, j), at(i, j - 1));
  }
  int& at(std::size_t i, std::size_t j) { return lengths_[i * columns_ + j]; }

 private:
  std::size_t columns_;
  std::vector<int> lengths_;
};

// Indexes into `reference` of one longest common subsequence. A tie goes to the earlier words of `first_back`:
// the two packages walk back through the table in different orders.
enum class Tie { kReference, kAnswer };
std::vector<std::size_t> common(const Words& reference, const Words& answer, Tie tie) {
  LcsTable table(reference, answer);
  std::vector<std::size_t> indexes;
  std::size_t i = reference.size(), j = answer.size();
  while (i > 0 && j > 0) {
    if (reference[i - 1] == answer[j - 1]) {
      indexes.push_back(--i);
      --j;
      continue;
    }
    const int up = table.at(i - 1, j), left = table.at(i, j - 1);
    const bool goes_up = tie == Tie::kReference ? up > left : up >= left;
    goes_up ? --i : --j;
  }
  return indexes;
}

Sentences sentences_at_stops(std::string_view text) {
  Sentences sentences;
  for (std::string_view part : split_at(text, '.')) {
    if (part.empty()) continue;
    Words words = split_words(part);
    if (words.empty()) words.emplace_back();  // the package splits "" into one empty word
    sentences.push_back(std::move(words));
  }
  return sentences;
}

Sentences sentences_of_lines(std::string_view text) {
  Sentences sentences;
  for (std::string_view line : split_at(text, '\n')) {
    std::string plain = lowered(line);
    for (char& c : plain)
      if (!is_letter_or_digit(c)) c = ' ';
    Words words = split_words(plain);
    if (!words.empty()) sentences.push_back(std::move(words));
  }
  return sentences;
}

std::set<std::string> distinct(const Sentences& sentences) {
  std::set<std::string> words;
  for (const Words& s : sentences) words.insert(s.begin(), s.end());
  return words;
}

std::map<std::string, int> counted(const Sentences& sentences) {
  std::map<std::string, int> counts;
  for (const Words& s : sentences)
    for (const std::string& w : s) ++counts[w];
  return counts;
}

}  // namespace

double rouge_l_of(const Sentences& answer, const Sentences& reference) {
  if (answer.empty() || reference.empty()) return 0;
  std::set<std::string> all;
  for (const Words& r : reference)
    for (const Words& a : answer)
      for (std::size_t i : common(r, a, Tie::kReference)) all.insert(r[i]);
  const double recall = ratio(all.size(), distinct(reference).size());
  const double precision = ratio(all.size(), distinct(answer).size());
  return 2 * (precision * recall / (precision + recall + 1e-8));
}

double rouge_l(std::string_view answer, std::string_view reference) {
  return rouge_l_of(sentences_at_stops(answer), sentences_at_stops(reference));
}

double rouge_l_sum(std::string_view answer, std::string_view reference) {
  const Sentences a = sentences_of_lines(answer), r = sentences_of_lines(reference);
  auto left_a = counted(a), left_r = counted(r);
  double n_a = 0, n_r = 0, hits = 0;
  for (const auto& [word, n] : left_a) n_a += n;
  for (const auto& [word, n] : left_r) n_r += n;
  for (const Words& sentence : r) {
    std::set<std::size_t> found;
    for (const Words& other : a)
      for (std::size_t i : common(sentence, other, Tie::kAnswer)) found.insert(i);
    for (std::size_t i : found) {
      int& in_a = left_a[sentence[i]];
      int& in_r = left_r[sentence[i]];
      if (in_a <= 0 || in_r <= 0) continue;
      ++hits, --in_a, --in_r;
    }
  }
  return hits == 0 ? 0 : 2 * (hits / n_a) * (hits / n_r) / (hits / n_a + hits / n_r);
}

}  // namespace mneme::eval

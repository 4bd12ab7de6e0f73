// Long answers: lines in order, entries of a plan.
#include <algorithm>
#include <charconv>
#include <set>

#include "apps/eval/scorers/scorer.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::string_view line : split_at(text, '\n'))
    if (!stripped(line).empty()) lines.push_back(stripped(line));
  return lines;
}

// The number behind the first "TYPE " that digits follow; -1: none.
int entry_number(std::string_view block, std::string_view type) {
  for (std::size_t at = block.find(type); at != std::string_view::npos; at = block.find(type, at + 1)) {
    const std::string_view rest = block.substr(at + type.size());
    if (rest.size() < 2 || rest[0] != ' ') continue;
    int number = 0;
    if (std::from_chars(rest.data() + 1, rest.data() + rest.size(), number).ec == std::errc()) return number;
  }
  return -1;
}

}  // namespace

// The longest common subsequence of lines over the number of the reference's.
double score_lines(std::string_view answer, const Reference& reference) {
  const auto found = lines_of(answer);
  double most = 0;
  for (const std::string& r : reference.answers) {
    const auto wanted = lines_of(r);
    if (wanted.empty()) continue;
    std::vector<std::size_t> row(wanted.size() + 1);
    for (std::string_view line : found) {
      std::size_t diagonal = 0;
      for (std::size_t j = 1; j <= wanted.size(); ++j) {
        const std::size_t above = row[j];
        row[j] = line == wanted[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
        diagonal = above;
      }
    }
    most = std::max(most, ratio(row.back(), wanted.size()));
  }
  return most;
}

double score_completion(std::string_view answer, const Reference& reference) {
  const std::string& plan = reference.answers.front();
  const std::size_t space = plan.rfind(' ');
  int wanted = 0;
  if (space == std::string::npos ||
      std::from_chars(plan.data() + space + 1, plan.data() + plan.size(), wanted).ec != std::errc() || wanted <= 0)
    return 0;
  const std::string_view type = std::string_view(plan).substr(0, space);
  std::set<int> entries;
  for (std::string_view rest = answer;;) {
    const std::size_t end = rest.find("#*#");
    const int number = entry_number(rest.substr(0, end), type);
    if (number >= 1 && number <= wanted) entries.insert(number);
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 3);
  }
  return ratio(entries.size(), wanted);
}

}  // namespace mneme::eval

#include "apps/eval/scorers/edit_similarity.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "apps/eval/scorers/words.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

// Python's round(): halves go to the even neighbour.
int percent(double ratio) {
  return static_cast<int>(std::nearbyint(100 * ratio));
}

struct Match {
  std::size_t a = 0, b = 0, size = 0;
};
struct Range {
  std::size_t a_begin, a_end, b_begin, b_end;
};

class SequenceMatcher {
 public:
  SequenceMatcher(std::u32string_view a, std::u32string_view b) : a_(a), b_(b) {
    for (std::size_t j = 0; j < b.size(); ++j) places_[b[j]].push_back(j);
    if (b.size() < 200) return;
    const std::size_t popular = b.size() / 100 + 1;
    std::erase_if(places_, [&](const auto& entry) { return entry.second.size() > popular; });
  }

  double ratio() const {
    std::size_t matched = 0;
    std::vector<Range> open = {{0, a_.size(), 0, b_.size()}};
    while (!open.empty()) {
      const Range r = open.back();
      open.pop_back();
      const Match m = longest(r);
      if (m.size == 0) continue;
      matched += m.size;
      if (r.a_begin < m.a && r.b_begin < m.b) open.push_back({r.a_begin, m.a, r.b_begin, m.b});
      if (m.a + m.size < r.a_end && m.b + m.size < r.b_end)
        open.push_back({m.a + m.size, r.a_end, m.b + m.size, r.b_end});
    }
    return mneme::ratio(2 * matched, a_.size() + b_.size());
  }

 private:
  // The longest block that both hold in the range, the earliest in a, then in b; popular characters only extend it.
  Match longest(const Range& r) const {
    Match best{r.a_begin, r.b_begin, 0};
    std::map<std::size_t, std::size_t> lengths;  // by the end in b
    for (std::size_t i = r.a_begin; i < r.a_end; ++i) {
      std::map<std::size_t, std::size_t> next;
      if (const auto found = places_.find(a_[i]); found != places_.end())
        for (std::size_t j : found->second) {
          if (j < r.b_begin) continue;
          if (j >= r.b_end) break;
          const auto before = j == 0 ? lengths.end() : lengths.find(j - 1);
          const std::size_t k = (before == lengths.end() ? 0 : before->second) + 1;
          next[j] = k;
          if (k > best.size) best = {i + 1 - k, j + 1 - k, k};
        }
      lengths = std::move(next);
    }
    while (best.a > r.a_begin && best.b > r.b_begin && a_[best.a - 1] == b_[best.b - 1])
      --best.a, --best.b, ++best.size;
    while (best.a + best.size < r.a_end && best.b + best.size < r.b_end &&
           a_[best.a + best.size] == b_[best.b + best.size])
      ++best.size;
    return best;
  }

  std::u32string_view a_, b_;
  std::map<char32_t, std::vector<std::size_t>> places_;  // of characters in b
};

}  // namespace

int levenshtein_percent(std::string_view a, std::string_view b) {
  const std::u32string x = characters(a), y = characters(b);
  if (x == y) return 100;
  if (x.empty() || y.empty()) return 0;
  std::vector<std::size_t> row(y.size() + 1);
  for (char32_t c : x) {
    std::size_t diagonal = 0;
    for (std::size_t j = 1; j <= y.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = c == y[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return percent(ratio(2 * row.back(), x.size() + y.size()));
}

int difflib_percent(std::string_view a, std::string_view b) {
  const std::u32string x = characters(a), y = characters(b);
  if (x == y) return 100;
  if (x.empty() || y.empty()) return 0;
  return percent(SequenceMatcher(x, y).ratio());
}

std::string_view first_code_line(std::string_view answer) {
  answer.remove_prefix(std::min(answer.find_first_not_of('\n'), answer.size()));
  for (std::string_view line : split_at(answer, '\n'))
    if (line.find('`') == line.npos && line.find('#') == line.npos && line.find("//") == line.npos) return line;
  return {};
}

}  // namespace mneme::eval

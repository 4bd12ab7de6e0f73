#include "src/base/most_like.h"

#include <algorithm>
#include <string>
#include <vector>

#include "src/base/ascii.h"

namespace mneme {
namespace {

constexpr std::size_t kLongest = 60;  // a longer text is no mistyped name, and its distance costs its square

std::string folded(std::string_view name) {
  std::string out = ascii_lower(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

// Insertions, deletions, replacements and exchanges of neighbours that make one of the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const bool same = a[i - 1] == b[j - 1];
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string_view most_like(std::string_view name, std::span<const std::string_view> names) {
  if (name.empty() || name.size() > kLongest) return {};
  const std::string wanted = folded(name);
  std::string_view best;
  std::size_t least = std::max<std::size_t>(name.size() / 3, 1) + 1;
  for (const std::string_view known : names) {
    const std::size_t d = edit_distance(wanted, folded(known));
    if (d >= least) continue;
    least = d;
    best = known;
  }
  return best;
}

}  // namespace mneme

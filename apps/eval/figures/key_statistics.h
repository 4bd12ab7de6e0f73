// What indexes find among random keys of given statistics: head sizes, outlier channels, biases under RoPE.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::eval {

enum class KeyStatistics : std::uint8_t {
  kPlain,     // page means and tokens around them, in a random basis with a spectrum of 1 / i
  kOutliers,  // four channels 20 times as wide, and as much narrower in queries: the true scores are the plain ones
  kBiases,    // a bias in every channel, in four of them 20 times the deviation, rotated by RoPE, as QKV biases make it
};
std::string_view statistics_name(KeyStatistics statistics);

struct KeyStatisticsOptions {
  std::vector<std::int32_t> head_dims = {64, 128};
  std::int32_t tokens = 4096, queries = 8, heads = 4;  // heads: repetitions
  std::int32_t top = 64;                               // true best tokens that are looked for
  std::int32_t budget = 256;                           // tokens that an index selects
  std::int32_t page = 32;
  std::uint64_t seed = 7;
};

// One index under one statistic; means over heads and queries, 0 to 1.
struct IndexFinding {
  std::int32_t head_dim = 0;
  KeyStatistics statistics = KeyStatistics::kPlain;
  std::string index;      // "centroids:8, pages of 32"
  double bytes = 0;       // of `page` tokens
  double top_tokens = 0;  // share of the `top` tokens with the largest exact scores among `budget` selected tokens
  double top_pages = 0;   // of the budget's pages by their exact log-sum-exp, the share that is selected; -1: of tokens
  double deviation = 0;   // of top_tokens over heads and queries, of their mean
};

std::vector<IndexFinding> index_findings(const KeyStatisticsOptions& options);

}  // namespace mneme::eval

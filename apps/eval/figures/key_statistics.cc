#include "apps/eval/figures/key_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "src/base/ratio.h"
#include "src/base/rng.h"
#include "src/base/underlying.h"
#include "src/kv/page_pool.h"
#include "src/kv/sequence_cache.h"
#include "src/ops/attention/attention.h"
#include "src/selection/index/unit_index.h"
#include "src/selection/summary/summary_index.h"
#include "src/selection/topk/topk.h"

namespace mneme::eval {
namespace {

constexpr std::int32_t kWide = 4;  // channels that are wider than the others
constexpr float kTimes = 20.0f;
constexpr double kRopeBase = 1e6;  // qwen2's

std::vector<float> normals(std::size_t n, Rng& rng) {
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(rng.normal());
  return v;
}

// Rotates the pairs (i, i + D / 2).
void rotate(std::span<float> x, std::int32_t position) {
  const auto half = static_cast<std::int32_t>(std::ssize(x) / 2);
  for (std::int32_t i = 0; i < half; ++i) {
    const double angle = position * std::pow(kRopeBase, -ratio(i, half));
    const auto c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
    const float a = x[i], b = x[i + half];
    x[i] = a * c - b * s, x[i + half] = a * s + b * c;
  }
}

// Keys of one head, stored, and queries at the last position.
struct Head {
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<SequenceCache> cache;
  std::vector<float> q;  // [queries, D]
  AttentionShape shape;
};

Head make_head(const KeyStatisticsOptions& o, std::int32_t d, KeyStatistics statistics, Rng rng) {
  Head h;
  h.shape = {
      .group = o.queries, .head_dim = d, .kv_dtype = DType::kBF16, .scale = 1.0f / std::sqrt(static_cast<float>(d))};
  h.pool = std::make_unique<PagePool>(KvShape{1, 1, d, DType::kBF16}, o.tokens / kPageTokens + 1);
  h.cache = std::make_unique<SequenceCache>(*h.pool);
  h.cache->extend(o.tokens);
  const std::vector<float> basis = normals(std::size_t{0} + d * d, rng);
  std::vector<float> key_bias = normals(d, rng), query_bias = normals(d, rng);
  for (std::int32_t i = 0; i < kWide; ++i) key_bias[i * d / kWide] *= kTimes;
  std::vector<float> mean;
  for (std::int32_t t = 0; t < o.tokens; ++t) {
    if (t % o.page == 0) mean = normals(d, rng);
    const std::vector<float> z = normals(d, rng);
    std::vector<float> k(d);
    for (std::int32_t i = 0; i < d; ++i) {
      k[i] = 0.5f * mean[i];
      for (std::int32_t j = 0; j < d; ++j) k[i] += basis[i * d + j] * z[j] / static_cast<float>(1 + j);
      if (statistics == KeyStatistics::kBiases) k[i] += key_bias[i];
      if (statistics == KeyStatistics::kOutliers && i % (d / kWide) == 0) k[i] *= kTimes;
    }
    if (statistics == KeyStatistics::kBiases) rotate(k, t);
    store_kv(k.data(), k.data(), h.shape, h.cache->token(0, 0, t));
  }
  h.q = normals(std::size_t{0} + o.queries * d, rng);
  for (std::int32_t g = 0; g < o.queries; ++g) {
    const std::span<float> q = std::span(h.q).subspan(std::size_t{0} + g * d, d);
    for (std::int32_t i = 0; i < d; ++i) {
      if (statistics == KeyStatistics::kBiases) q[i] += query_bias[i];
      if (statistics == KeyStatistics::kOutliers && i % (d / kWide) == 0) q[i] /= kTimes;
    }
    if (statistics == KeyStatistics::kBiases) rotate(q, o.tokens - 1);
  }
  return h;
}

struct Candidate {
  std::string name;
  std::int32_t unit;
  std::unique_ptr<UnitIndex> index;
};

std::vector<Candidate> candidates(std::int32_t page) {
  std::vector<Candidate> all;
  const auto pages = [&](std::string name, std::unique_ptr<UnitIndex> index) {
    all.push_back({fmt::format("{}, pages of {}", name, page), page, std::move(index)});
  };
  pages("exact", make_raw_key_index(page));
  pages("box", make_box_index(BoxKind::kMinMax, page));
  pages("cuboid", make_box_index(BoxKind::kCuboidMean, page));
  pages("moments", make_moments_index(page));
  for (const std::int32_t k : {2, 4, 8, 16}) pages(fmt::format("centroids:{}", k), make_centroids_index(k, page));
  for (const std::int32_t r : {8, 12, 16, 24}) pages(fmt::format("sketch:{}", r), make_sketch_index(r, page));
  all.push_back({"1-bit keys, tokens", 1, make_one_bit_index({.group = 32}, 1)});
  for (const std::int32_t r : {8, 12, 16, 24})
    all.push_back({fmt::format("sketch:{}, tokens", r), 1, make_sketch_index(r, 1)});
  return all;
}

// [queries, units]
std::vector<float> scores_of(const Candidate& c, const Head& h, std::int32_t tokens) {
  const std::int32_t e = c.index->entry_tokens(), n = tokens / c.unit;
  EntryStore entries(c.index->entry_bytes(h.shape));
  const HeadKeys keys{.cache = h.cache.get()};
  std::vector<float> frame(c.index->frame_floats(h.shape));
  if (!frame.empty()) c.index->fit(keys, tokens / e, h.shape, frame.data());
  std::vector<KvRun> runs;
  for (std::int32_t i = 0; i < tokens / e && entries.entry_bytes() > 0; ++i) {
    runs.clear();
    h.cache->append_runs(0, 0, i * e, (i + 1) * e, runs);
    c.index->build_in(frame.empty() ? nullptr : frame.data(), runs, h.shape, entries.append());
  }
  std::vector<float> scores(std::int64_t{h.shape.group} * n);
  ScoreScratch scratch;
  c.index->score({.head = {h.cache.get(), &entries, 0, 0, frame.empty() ? nullptr : frame.data()},
                  .q = h.q.data(),
                  .shape = h.shape,
                  .first_unit = 0,
                  .last_unit = n,
                  .alpha = h.shape.scale,
                  .scores = scores.data(),
                  .score_stride = n},
                 scratch);
  return scores;
}

std::vector<std::int32_t> best(std::span<const float> scores, std::int32_t k) {
  TopkScratch scratch;
  std::vector<std::int32_t> ids(k);
  ids.resize(topk_cpu(scores, k, ids.data(), scratch));
  return ids;
}

// Share of `wanted` tokens in the selected units.
double share_in(std::span<const std::int32_t> wanted, std::span<const std::int32_t> units, std::int32_t unit) {
  std::int64_t found = 0;
  for (const std::int32_t t : wanted) found += std::find(units.begin(), units.end(), t / unit) != units.end() ? 1 : 0;
  return ratio(found, wanted.size());
}

}  // namespace

std::string_view statistics_name(KeyStatistics statistics) {
  static constexpr std::string_view kNames[] = {"plain", "outliers", "biases"};
  return kNames[underlying(statistics)];
}

namespace {

double mean_of(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x;
  return ratio(sum, v.size());
}

// What a candidate finds in one head: appends a value a query.
void find_in(const Candidate& c, const Head& h, const KeyStatisticsOptions& o, std::span<const float> true_tokens,
             std::span<const float> true_pages, std::vector<double>& tokens, std::vector<double>& pages) {
  const std::vector<float> scores = scores_of(c, h, o.tokens);
  const std::int64_t n = o.tokens / c.unit, n_pages = o.tokens / o.page;
  for (std::int32_t g = 0; g < o.queries; ++g) {
    const auto units = best(std::span(scores).subspan(g * n, n), o.budget / c.unit);
    tokens.push_back(share_in(best(true_tokens.subspan(std::int64_t{g} * o.tokens, o.tokens), o.top), units, c.unit));
    if (c.unit > 1)
      pages.push_back(share_in(best(true_pages.subspan(g * n_pages, n_pages), o.budget / c.unit), units, 1));
  }
}

std::vector<IndexFinding> findings_of(const KeyStatisticsOptions& o, std::int32_t d, KeyStatistics s) {
  const std::vector<Candidate> all = candidates(o.page);
  std::vector<std::vector<double>> tokens(all.size()), pages(all.size());
  const AttentionShape shape{.group = o.queries, .head_dim = d, .kv_dtype = DType::kBF16, .scale = 1};
  for (std::int32_t head = 0; head < o.heads; ++head) {
    const Head h = make_head(o, d, s, Rng::of_item(o.seed, head));
    const std::vector<float> true_tokens = scores_of({"", 1, make_raw_key_index(1)}, h, o.tokens),
                             true_pages = scores_of(all[0], h, o.tokens);
    for (std::size_t i = 0; i < all.size(); ++i) find_in(all[i], h, o, true_tokens, true_pages, tokens[i], pages[i]);
  }
  std::vector<IndexFinding> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double entry = real(all[i].index->entry_bytes(shape));
    IndexFinding f{.head_dim = d, .statistics = s, .index = all[i].name, .top_tokens = mean_of(tokens[i])};
    f.bytes = entry == 0 ? 2.0 * d * o.page : entry * o.page / all[i].index->entry_tokens();
    f.top_pages = pages[i].empty() ? -1 : mean_of(pages[i]);
    double squares = 0;
    for (const double x : tokens[i]) squares += (x - f.top_tokens) * (x - f.top_tokens);
    f.deviation = ratio(std::sqrt(squares), tokens[i].size());
    out.push_back(f);
  }
  return out;
}

}  // namespace

std::vector<IndexFinding> index_findings(const KeyStatisticsOptions& o) {
  std::vector<IndexFinding> out;
  for (const std::int32_t d : o.head_dims)
    for (const KeyStatistics s : {KeyStatistics::kPlain, KeyStatistics::kOutliers, KeyStatistics::kBiases})
      for (IndexFinding& f : findings_of(o, d, s)) out.push_back(std::move(f));
  return out;
}

}  // namespace mneme::eval

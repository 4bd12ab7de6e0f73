#include "apps/eval/similarity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/methods/decode_attention.h"
#include "src/selection/gate/gate.h"
#include "src/selection/index/box.h"
#include "src/selection/pool/group_pool.h"
#include "src/selection/topk/topk.h"

namespace mneme::eval {
namespace {

constexpr std::int32_t kLargestGroup = 256;  // of tokens that an index takes together
constexpr GatePool kGatePools[] = {GatePool::kMean, GatePool::kMax, GatePool::kAny};

}  // namespace

struct SimilarityObserver::Case {
  std::string label;
  std::unique_ptr<UnitIndex> index;
  std::int32_t unit_tokens = 1;
  std::vector<double> found = {};  // sums over samples, by budget
  std::int64_t samples = 0;
};

struct SimilarityObserver::Sequence {
  std::vector<float> last_query;                    // [layers, heads, D]
  std::vector<std::int32_t> last_length;            // by layer
  std::vector<EntryStore> entries;                  // by case, layer, KV head
  std::vector<std::vector<std::int32_t>> critical;  // by layer and query head, ascending
  std::vector<std::int32_t> critical_at;            // by layer: at which length
};

SimilarityObserver::SimilarityObserver(const MethodShape& shape, SimilarityOptions options)
    : shape_(shape), options_(std::move(options)) {
  cosines_.resize(shape.n_layers * shape.n_heads);
  overlaps_.resize(shape.n_layers);
  for (auto& pool : gate_) pool.resize(shape.n_layers);
  for (std::int32_t p : {8, 16, 32})
    cases_.push_back({fmt::format("box, pages of {}", p), make_box_index(BoxKind::kMinMax, p), p});
  for (std::int32_t p : {8, 16, 32})
    cases_.push_back(
        {fmt::format("1-bit scores, averaged over pages of {}", p), make_one_bit_index({.group = 32}, p), p});
  for (const auto& [levels, name] :
       {std::pair{OneBitLevels::kMinMax, "min-max"}, std::pair{OneBitLevels::kMeanAbs, "mean and mean deviation"}})
    for (std::int32_t g : {32, 128, 256})
      cases_.push_back({fmt::format("1-bit keys, groups of {}, {}", g, name),
                        make_one_bit_index({.group = g, .levels = levels}, 1), 1});
  for (Case& c : cases_) c.found.resize(options_.budgets.size());
}

SimilarityObserver::~SimilarityObserver() = default;

void SimilarityObserver::forget_sequences() {
  sequences_.clear();
}

void SimilarityObserver::see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) {
  const std::size_t width = std::int64_t{shape_.n_heads} * shape_.head_dim;
  Sequence& s = sequences_[row.cache];
  if (s.last_query.empty()) {
    s.last_query.resize(width * shape_.n_layers);
    s.last_length.assign(shape_.n_layers, -1);
    s.critical.resize(shape_.n_layers * shape_.n_heads);
    s.critical_at.assign(shape_.n_layers, -1);
    for (const Case& c : cases_)
      s.entries.insert(s.entries.end(), shape_.n_layers * shape_.n_kv_heads, EntryStore(c.index->entry_bytes(shape)));
  }
  float* before = s.last_query.data() + layer * width;
  std::int32_t& last_length = s.last_length[layer];
  const std::int32_t length = row.cache->length(), d = shape.head_dim;
  if (last_length + 1 == length) {
    for (std::int32_t h = 0; h < shape_.n_heads; ++h)
      cosines_[layer * shape_.n_heads + h].push_back(cosine(row.q + h * d, before + h * d, d));
    for (std::size_t p = 0; p < std::size(kGatePools); ++p)
      for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
        const std::int64_t at = std::int64_t{m} * shape.group * d;
        gate_[p][layer].push_back(pooled_cosine(kGatePools[p], row.q + at, before + at, shape.group, d));
      }
  }
  if (s.critical_at[layer] + 1 == length)
    measure_overlap(layer, row, shape, s,
                    !(pooled_cosine(GatePool::kMean, row.q, before, shape_.n_heads, d) >= options_.boundary));
  std::copy_n(row.q, width, before);
  last_length = length;
  if (options_.recall_every > 0 && length % options_.recall_every == 0) measure_recall(layer, row, shape, s);
}

// The tokens of [0, n) that each head of a group attends most.
std::vector<std::vector<std::int32_t>> SimilarityObserver::true_tokens(std::int32_t layer, std::int32_t kv_head,
                                                                       const DecodeRow& row,
                                                                       const AttentionShape& shape,
                                                                       std::int32_t n_tokens) {
  std::vector<KvRun> runs;
  row.cache->append_runs(layer, kv_head, 0, n_tokens, runs);
  std::vector<float> scores(std::int64_t{shape.group} * n_tokens);
  key_score_cpu(row.q + std::int64_t{kv_head} * shape.group * shape.head_dim, shape, runs, scores.data(), n_tokens);
  std::vector<std::vector<std::int32_t>> truth(shape.group);
  for (std::int32_t g = 0; g < shape.group; ++g) {
    auto& top = truth[g];
    top.resize(options_.top);
    const std::span<const float> head(scores.data() + std::int64_t{g} * n_tokens, n_tokens);
    topk_cpu(head, options_.top, top.data(), topk_scratch_);
  }
  return truth;
}

void SimilarityObserver::measure_overlap(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape,
                                         Sequence& sequence, bool boundary) {
  // Only tokens that the preceding step saw, so that both sets are selected from the same.
  const std::int32_t n = (row.cache->length() - 1) / kLargestGroup * kLargestGroup;
  Overlap& o = overlaps_[layer];
  for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
    const auto now = true_tokens(layer, m, row, shape, n);
    for (std::int32_t g = 0; g < shape.group; ++g) {
      const auto& a = now[g];
      const auto& b = sequence.critical[layer * shape_.n_heads + m * shape.group + g];
      std::vector<std::int32_t> both;
      std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
      const double jaccard = ratio(both.size(), a.size() + b.size() - both.size());
      double& mean = boundary ? o.across : o.within;
      std::int64_t& count = boundary ? o.n_across : o.n_within;
      mean += ratio(jaccard - mean, ++count);
    }
  }
}

void SimilarityObserver::measure_recall(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape,
                                        Sequence& sequence) {
  const std::int32_t n = row.cache->length() / kLargestGroup * kLargestGroup;
  if (n <= options_.top) return;
  std::vector<KvRun> runs;
  sequence.critical_at[layer] = row.cache->length();
  for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
    const float* q = row.q + std::int64_t{m} * shape.group * shape.head_dim;
    const auto truth = true_tokens(layer, m, row, shape, n);
    std::copy(truth.begin(), truth.end(),
              sequence.critical.begin() + std::int64_t{layer} * shape_.n_heads + std::int64_t{m} * shape.group);
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      Case& c = cases_[i];
      EntryStore& entries = sequence.entries[(i * shape_.n_layers + layer) * shape_.n_kv_heads + m];
      const std::int32_t e = c.index->entry_tokens();
      while (entries.size() < n / e) {
        runs.clear();
        row.cache->append_runs(layer, m, entries.size() * e, (entries.size() + 1) * e, runs);
        c.index->build(runs, shape, entries.append());
      }
      measure_case(c, {row.cache, &entries, layer, m}, q, shape, n, truth);
    }
  }
}

void SimilarityObserver::measure_case(Case& c, const HeadKeys& keys, const float* q, const AttentionShape& shape,
                                      std::int32_t n_tokens, const std::vector<std::vector<std::int32_t>>& truth) {
  const std::int32_t n_units = n_tokens / c.unit_tokens;
  std::vector<float> scores(std::int64_t{shape.group} * n_units);
  c.index->score({.head = keys,
                  .q = q,
                  .shape = shape,
                  .first_unit = 0,
                  .last_unit = n_units,
                  .alpha = shape.scale,
                  .scores = scores.data(),
                  .score_stride = n_units},
                 score_scratch_);
  std::vector<std::int32_t> units;
  std::vector<std::uint8_t> selected(n_units);
  for (std::int32_t g = 0; g < shape.group; ++g) {
    const std::span<const float> head(scores.data() + std::int64_t{g} * n_units, n_units);
    for (std::size_t b = 0; b < options_.budgets.size(); ++b) {
      const std::int32_t wanted = std::min(n_units, options_.budgets[b] / c.unit_tokens);
      units.resize(wanted);
      const std::int32_t found = wanted == 0 ? 0 : topk_cpu(head, wanted, units.data(), topk_scratch_);
      std::fill(selected.begin(), selected.end(), std::uint8_t{0});
      for (std::int32_t i = 0; i < found; ++i) selected[units[i]] = 1;
      std::int64_t hits = 0;
      for (std::int32_t t : truth[g]) hits += selected[t / c.unit_tokens];
      c.found[b] += ratio(hits, options_.top);
    }
    ++c.samples;
  }
}

std::vector<float> SimilarityObserver::gate_values(GatePool pool, std::int32_t first_layer) const {
  const auto& layers = gate_[std::find(std::begin(kGatePools), std::end(kGatePools), pool) - std::begin(kGatePools)];
  std::vector<float> all;
  for (std::size_t l = first_layer; l < layers.size(); ++l) all.insert(all.end(), layers[l].begin(), layers[l].end());
  return all;
}

std::vector<SimilarityObserver::Recall> SimilarityObserver::recalls() const {
  const AttentionShape shape = shape_.attention();
  std::vector<Recall> all;
  for (const Case& c : cases_) {
    Recall r{.index = c.label, .samples = c.samples};
    r.load_ratio =
        ratio(2 * c.index->bytes_read(kLargestGroup, shape), kLargestGroup * c.unit_tokens * shape.token_bytes());
    for (double sum : c.found) r.of.push_back(ratio(sum, c.samples));
    all.push_back(std::move(r));
  }
  return all;
}

float percentile(std::vector<float> values, double share) {
  if (values.empty()) return 0;
  const auto at = std::min(values.size() - 1, part_of(values.size(), share));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

}  // namespace mneme::eval

#include "src/selection/summary/summary_index.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/selection/summary/centroids.h"
#include "src/selection/summary/key_frame.h"
#include "src/selection/summary/moments.h"
#include "src/selection/summary/packed_dots.h"
#include "src/selection/summary/sketch.h"

namespace mneme {
namespace {

// Entries made from keys in f32, a page each.
class SummaryIndex : public UnitIndex {
 public:
  explicit SummaryIndex(std::int32_t page) : page_(page) {}

  std::int32_t entry_tokens() const final { return page_; }
  void build(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* entry) const final {
    build_in(nullptr, runs, shape, entry);
  }
  void build_in(const float* frame, std::span<const KvRun> runs, const AttentionShape& shape,
                std::byte* entry) const final {
    thread_local std::vector<float> keys;
    keys.resize(std::size_t{1} * page_ * shape.head_dim);
    load_keys_cpu(runs, shape, keys.data());
    build_entry(keys.data(), shape, frame, entry);
  }
  void fit(const HeadKeys& head, std::int32_t n_pages, const AttentionShape& shape, float* frame) const final {
    const FittedPages pages = fitted_pages(n_pages);
    std::vector<float> keys(std::size_t{1} * pages.n * page_ * shape.head_dim);
    std::vector<KvRun> runs;
    for (std::int32_t i = 0; i < pages.n; ++i) {
      const std::int32_t begin = (pages.first + i * pages.step) * page_;
      runs.clear();
      head.cache->append_runs(head.layer, head.kv_head, begin, begin + page_, runs);
      load_keys_cpu(runs, shape, keys.data() + std::int64_t{i} * page_ * shape.head_dim);
    }
    fit_keys(keys.data(), pages.n, shape, frame);
  }
  std::size_t bytes_read(std::int32_t n_units, const AttentionShape& shape) const override {
    return n_units * entry_bytes(shape);
  }

 protected:
  // The scores of entries [first, last) to rows of task.scores.
  template <class Score>
  void score_all(const ScoreTask& t, std::int32_t first, std::int32_t last, std::int32_t per_entry, float* out,
                 std::int64_t stride, const Score& score) const {
    t.head.entries->for_contiguous(first, last, [&](const std::byte* entries, std::int32_t at, std::int32_t n) {
      score(scores_of(t, entries, n, out + std::int64_t{at - first} * per_entry, stride));
    });
  }
  SummaryScores scores_of(const ScoreTask& t, const std::byte* entries, std::int64_t n, float* out,
                          std::int64_t stride) const {
    return {.q = t.q,
            .frame = t.head.frame,
            .entries = entries,
            .n = n,
            .group = t.shape.group,
            .head_dim = t.shape.head_dim,
            .page = page_,
            .alpha = t.alpha,
            .scores = out,
            .stride = stride};
  }

  std::int32_t page_;

 private:
  virtual void build_entry(const float* keys, const AttentionShape& shape, const float* frame,
                           std::byte* entry) const = 0;
  virtual void fit_keys(const float*, std::int32_t, const AttentionShape&, float*) const {}
};

class CentroidsIndex final : public SummaryIndex {
 public:
  CentroidsIndex(std::int32_t k, std::int32_t page) : SummaryIndex(page), k_(k) {}

  std::size_t entry_bytes(const AttentionShape& shape) const override {
    return centroids_entry_bytes(shape.head_dim, k_);
  }
  std::int64_t frame_floats(const AttentionShape& shape) const override {
    return centroids_frame_floats(shape.head_dim);
  }
  void score(const ScoreTask& t, ScoreScratch&) const override {
    score_all(t, t.first_unit, t.last_unit, 1, t.scores, t.score_stride,
              [&](const SummaryScores& s) { centroids_score_cpu(s, k_); });
  }

 private:
  void build_entry(const float* keys, const AttentionShape& shape, const float* frame,
                   std::byte* entry) const override {
    centroids_build_cpu(keys, page_, shape.head_dim, k_, frame, entry);
  }
  void fit_keys(const float* keys, std::int32_t n_pages, const AttentionShape& shape, float* frame) const override {
    centroids_fit_cpu(keys, n_pages, page_, shape.head_dim, k_, frame);
  }

  std::int32_t k_;
};

class SketchIndex final : public SummaryIndex {
 public:
  SketchIndex(std::int32_t r, std::int32_t unit_tokens)
      : SummaryIndex(unit_tokens == 1 ? kSketchTokens : unit_tokens), r_(r), by_token_(unit_tokens == 1) {}

  std::size_t entry_bytes(const AttentionShape& shape) const override {
    return sketch_entry_bytes(shape.head_dim, page_, r_);
  }
  std::int64_t frame_floats(const AttentionShape& shape) const override {
    return sketch_frame_floats(shape.head_dim, r_);
  }
  void score(const ScoreTask& t, ScoreScratch& scratch) const override {
    if (t.first_unit >= t.last_unit) return;
    if (!by_token_)
      return score_all(t, t.first_unit, t.last_unit, 1, t.scores, t.score_stride,
                       [&](const SummaryScores& s) { sketch_score_cpu(s, r_, false); });
    // Sinks may end inside a page.
    const std::int32_t first = t.first_unit / page_, last = (t.last_unit + page_ - 1) / page_;
    const std::int64_t n = std::int64_t{last - first} * page_;
    scratch.token_scores.resize(n * t.shape.group);
    score_all(t, first, last, page_, scratch.token_scores.data(), n,
              [&](const SummaryScores& s) { sketch_score_cpu(s, r_, true); });
    for (std::int32_t g = 0; g < t.shape.group; ++g)
      std::copy_n(scratch.token_scores.data() + g * n + (t.first_unit - first * page_), t.last_unit - t.first_unit,
                  t.scores + g * t.score_stride);
  }
  std::size_t bytes_read(std::int32_t n_units, const AttentionShape& shape) const override {
    return (by_token_ ? n_units / page_ : n_units) * entry_bytes(shape);
  }

 private:
  void build_entry(const float* keys, const AttentionShape& shape, const float* frame,
                   std::byte* entry) const override {
    sketch_build_cpu(keys, page_, shape.head_dim, r_, frame, entry);
  }
  void fit_keys(const float* keys, std::int32_t n_pages, const AttentionShape& shape, float* frame) const override {
    sketch_fit_cpu(keys, n_pages, page_, shape.head_dim, r_, frame);
  }

  std::int32_t r_;
  bool by_token_;
};

class MomentsIndex final : public SummaryIndex {
 public:
  using SummaryIndex::SummaryIndex;

  std::size_t entry_bytes(const AttentionShape& shape) const override { return moments_entry_bytes(shape.head_dim); }
  void score(const ScoreTask& t, ScoreScratch&) const override {
    score_all(t, t.first_unit, t.last_unit, 1, t.scores, t.score_stride,
              [](const SummaryScores& s) { moments_score_cpu(s); });
  }

 private:
  void build_entry(const float* keys, const AttentionShape& shape, const float*, std::byte* entry) const override {
    moments_build_cpu(keys, page_, shape.head_dim, entry);
  }
};

}  // namespace

std::unique_ptr<UnitIndex> make_centroids_index(std::int32_t k, std::int32_t unit_tokens) {
  return std::make_unique<CentroidsIndex>(k, unit_tokens);
}
std::unique_ptr<UnitIndex> make_sketch_index(std::int32_t r, std::int32_t unit_tokens) {
  return std::make_unique<SketchIndex>(r, unit_tokens);
}
std::unique_ptr<UnitIndex> make_moments_index(std::int32_t unit_tokens) {
  return std::make_unique<MomentsIndex>(unit_tokens);
}

}  // namespace mneme

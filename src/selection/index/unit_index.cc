#include "src/selection/index/unit_index.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/base/rng.h"
#include "src/base/size32.h"
#include "src/selection/index/centroid.h"
#include "src/selection/region/unit_groups.h"

namespace mneme {
namespace {

// Units of a group at the first level of a scan over boxes.

// log(sum exp(alpha x)) / alpha of n values.
float log_sum_exp(const float* x, std::int32_t n, float alpha) {
  float largest = x[0];
  for (std::int32_t i = 1; i < n; ++i) largest = std::max(largest, x[i]);
  float sum = 0.0f;
  for (std::int32_t i = 0; i < n; ++i) sum += std::exp(alpha * (x[i] - largest));
  return largest + std::log(sum) / alpha;
}

class EntryPerUnit : public UnitIndex {
 public:
  EntryPerUnit(const EntryForm& form, std::int32_t unit_tokens) : form_(form), unit_tokens_(unit_tokens) {}

  std::size_t entry_bytes(const AttentionShape& shape) const override { return form_.bytes(shape); }
  std::int32_t entry_tokens() const override { return unit_tokens_; }
  void build(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* entry) const override {
    form_.build(runs, shape, entry);
  }
  void score(const ScoreTask& t, ScoreScratch&) const override {
    t.head.entries->for_contiguous(
        t.first_unit, t.last_unit, [&](const std::byte* entries, std::int32_t first, std::int32_t n) {
          form_.score(t.q, t.shape, entries, n, t.scores + (first - t.first_unit), t.score_stride);
        });
  }
  std::size_t bytes_read(std::int32_t n_units, const AttentionShape& shape) const override {
    return n_units * entry_bytes(shape);
  }

 private:
  EntryForm form_;
  std::int32_t unit_tokens_;
};

template <BoxKind kKind>
void build_box(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* entry) {
  box_build_cpu(runs, shape, kKind, entry);
}
// Two 16-bit values a channel, as K and V.
std::size_t box_bytes(const AttentionShape& shape) {
  return shape.wide().token_bytes();
}
std::size_t centroid_bytes(const AttentionShape& shape) {
  return shape.wide().token_bytes() / 2;
}

class MinMaxBoxes final : public EntryPerUnit {
 public:
  explicit MinMaxBoxes(std::int32_t unit_tokens)
      : EntryPerUnit({&box_bytes, &build_box<BoxKind::kMinMax>, &box_score_cpu}, unit_tokens) {}
};

class OneBitIndex final : public UnitIndex {
 public:
  OneBitIndex(const OneBit& bits, std::int32_t unit_tokens)
      : levels_(bits.levels), group_(bits.group), unit_tokens_(unit_tokens) {}

  std::size_t entry_bytes(const AttentionShape& shape) const override {
    return one_bit_group_bytes(shape.head_dim, group_);
  }
  std::int32_t entry_tokens() const override { return group_; }
  void build(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* entry) const override {
    one_bit_build_cpu(runs, shape, group_, levels_, entry);
  }
  void score(const ScoreTask& t, ScoreScratch& scratch) const override {
    if (t.first_unit >= t.last_unit) return;
    const std::int32_t first_token = t.first_unit * unit_tokens_, last_token = t.last_unit * unit_tokens_;
    const std::int32_t first_group = first_token / group_, last_group = (last_token + group_ - 1) / group_;
    if (last_token > t.head.entries->size() * group_) return score_with_open_group(t);
    if (unit_tokens_ == 1 && first_token % group_ == 0 && last_token % group_ == 0) {
      score_groups(t, first_group, last_group, t.scores, t.score_stride);
      return;
    }
    const std::int64_t n_tokens = std::int64_t{last_group - first_group} * group_;
    scratch.token_scores.resize(n_tokens * t.shape.group);
    score_groups(t, first_group, last_group, scratch.token_scores.data(), n_tokens);
    const std::int32_t offset = first_token - first_group * group_;
    for (std::int32_t h = 0; h < t.shape.group; ++h) {
      const float* in = scratch.token_scores.data() + h * n_tokens + offset;
      float* out = t.scores + h * t.score_stride;
      for (std::int32_t u = 0; u < t.last_unit - t.first_unit; ++u) {
        out[u] = page_score(in + std::int64_t{u} * unit_tokens_);
      }
    }
  }
  std::size_t bytes_read(std::int32_t n_units, const AttentionShape& shape) const override {
    return (std::int64_t{n_units} * unit_tokens_ / group_) * entry_bytes(shape);
  }

 private:
  float page_score(const float* tokens) const {
    float sum = 0.0f;
    for (std::int32_t i = 0; i < unit_tokens_; ++i) sum += tokens[i];
    return sum / static_cast<float>(unit_tokens_);
  }
  // Units of one token, the last of which are in no complete group.
  void score_with_open_group(const ScoreTask& t) const {
    MNEME_CHECK(unit_tokens_ == 1, "pages of an open group");
    const std::int32_t stored = t.head.entries->size() * group_, open = std::max(stored, t.first_unit);
    ScoreScratch scratch;
    if (t.first_unit < stored) {
      ScoreTask closed = t;
      closed.last_unit = stored;
      score(closed, scratch);
    }
    scratch.runs.clear();
    t.head.cache->append_runs(t.head.layer, t.head.kv_head, open, t.last_unit, scratch.runs);
    key_score_cpu(t.q, t.shape, scratch.runs, t.scores + (open - t.first_unit), t.score_stride);
  }
  void score_groups(const ScoreTask& t, std::int32_t first, std::int32_t last, float* scores,
                    std::int64_t stride) const {
    t.head.entries->for_contiguous(first, last, [&](const std::byte* groups, std::int32_t at, std::int32_t n) {
      one_bit_score_cpu(t.q, t.shape, groups, n, group_, scores + std::int64_t{at - first} * group_, stride);
    });
  }

  OneBitLevels levels_;
  std::int32_t group_, unit_tokens_;
};

class RawKeyIndex final : public UnitIndex {
 public:
  explicit RawKeyIndex(std::int32_t unit_tokens) : unit_tokens_(unit_tokens) {}

  std::size_t entry_bytes(const AttentionShape&) const override { return 0; }
  std::int32_t entry_tokens() const override { return 1; }
  void build(std::span<const KvRun>, const AttentionShape&, std::byte*) const override {
    MNEME_CHECK(false, "raw keys have no entries");
  }
  void score(const ScoreTask& t, ScoreScratch& scratch) const override {
    const std::int64_t n_units = t.last_unit - t.first_unit, n_tokens = n_units * unit_tokens_;
    scratch.runs.clear();
    t.head.cache->append_runs(t.head.layer, t.head.kv_head, t.first_unit * unit_tokens_, t.last_unit * unit_tokens_,
                              scratch.runs);
    if (unit_tokens_ == 1) {
      key_score_cpu(t.q, t.shape, scratch.runs, t.scores, t.score_stride);
      return;
    }
    scratch.token_scores.resize(n_tokens * t.shape.group);
    key_score_cpu(t.q, t.shape, scratch.runs, scratch.token_scores.data(), n_tokens);
    for (std::int32_t h = 0; h < t.shape.group; ++h)
      for (std::int64_t u = 0; u < n_units; ++u)
        t.scores[h * t.score_stride + u] =
            log_sum_exp(scratch.token_scores.data() + h * n_tokens + u * unit_tokens_, unit_tokens_, t.alpha);
  }
  std::size_t bytes_read(std::int32_t n_units, const AttentionShape& shape) const override {
    return n_units * shape.token_bytes() * unit_tokens_ / 2;
  }

 private:
  std::int32_t unit_tokens_;
};

class RandomIndex final : public UnitIndex {
 public:
  explicit RandomIndex(std::uint64_t seed) : seed_(seed) {}

  std::size_t entry_bytes(const AttentionShape&) const override { return 0; }
  std::int32_t entry_tokens() const override { return 1; }
  void build(std::span<const KvRun>, const AttentionShape&, std::byte*) const override {
    MNEME_CHECK(false, "the random control has no entries");
  }
  void score(const ScoreTask& t, ScoreScratch&) const override {
    // One counter per (tokens stored, layer, KV head): the same draw for all heads of the group, another at every step.
    const std::uint64_t where = (static_cast<std::uint64_t>(t.head.cache->length()) << 24) ^
                                (static_cast<std::uint64_t>(t.head.layer) << 12) ^ t.head.kv_head;
    const std::uint64_t key = Rng(seed_ ^ (where * 0x9e3779b97f4a7c15ull)).next();
    for (std::int32_t u = t.first_unit; u < t.last_unit; ++u) {
      const float x = static_cast<float>(Rng(key, u).uniform());
      for (std::int32_t h = 0; h < t.shape.group; ++h) t.scores[h * t.score_stride + (u - t.first_unit)] = x;
    }
  }
  std::size_t bytes_read(std::int32_t, const AttentionShape&) const override { return 0; }

 private:
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<UnitIndex> make_entry_index(const EntryForm& form, std::int32_t unit_tokens) {
  return std::make_unique<EntryPerUnit>(form, unit_tokens);
}
std::unique_ptr<UnitIndex> make_box_index(BuildEntry build, std::int32_t unit_tokens) {
  return make_entry_index({&box_bytes, build, &box_score_cpu}, unit_tokens);
}
std::unique_ptr<UnitIndex> make_box_index(BoxKind kind, std::int32_t unit_tokens) {
  if (kind == BoxKind::kMinMax) return std::make_unique<MinMaxBoxes>(unit_tokens);
  return make_box_index(&build_box<BoxKind::kCuboidMean>, unit_tokens);
}
std::unique_ptr<UnitIndex> make_centroid_index(std::int32_t unit_tokens) {
  return make_entry_index({&centroid_bytes, &centroid_build_cpu, &centroid_score_cpu}, unit_tokens);
}
std::unique_ptr<UnitIndex> make_one_bit_index(const OneBit& bits, std::int32_t unit_tokens) {
  return std::make_unique<OneBitIndex>(bits, unit_tokens);
}
std::unique_ptr<UnitIndex> make_raw_key_index(std::int32_t unit_tokens) {
  return std::make_unique<RawKeyIndex>(unit_tokens);
}
std::unique_ptr<UnitIndex> make_random_index(std::uint64_t seed) {
  return std::make_unique<RandomIndex>(seed);
}

}  // namespace mneme

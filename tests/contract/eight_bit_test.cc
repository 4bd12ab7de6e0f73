// Every reader of keys and values in 8 bits computes what it computes from a bf16 cache that holds the same numbers, bit
// for bit: attention, indexes, clusters, masses, and every method of the table.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "src/base/size32.h"
#include "src/kv/kv_quant.h"
#include "src/ops/attention/attention.h"
#include "src/ops/norm_rope/rotate_keys.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "src/selection/cluster/kmeans.h"
#include "src/selection/index/box.h"
#include "src/selection/index/centroid.h"
#include "src/selection/index/one_bit.h"
#include "src/selection/mass/attention_mass.h"
#include "src/selection/summary/packed_dots.h"
#include "src/tensor/half_value.h"
#include "tests/contract/random_sequence.h"
#include "tests/ops/simd/each_target.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

// The same tokens of one head in 8 bits and in bf16, in runs of several lengths.
class TwoCaches {
 public:
  TwoCaches(const AttentionShape& shape, std::int32_t n_tokens, std::uint64_t seed) : eight_(shape), n_(n_tokens) {
    Rng rng(seed);
    pages_.resize(n_tokens * shape.token_bytes());
    std::vector<float> pair(2 * std::int64_t{shape.head_dim});
    for (std::int32_t t = 0; t < n_tokens; ++t) {
      for (float& x : pair) x = static_cast<float>(rng.normal());
      store_kv(pair.data(), pair.data() + shape.head_dim, shape, pages_.data() + t * shape.token_bytes());
    }
    const KvRun all{pages_.data(), n_tokens};
    const WideTokens wide({&all, 1}, shape, wide_);
    for (std::int32_t at = 0, n = 1; at < n_tokens; at += n, n = std::min(n % 32 + 7, n_tokens - at)) {
      runs8_.push_back({pages_.data() + at * shape.token_bytes(), n});
      runs16_.push_back({wide_.data() + at * shape.wide().token_bytes(), n});
    }
  }

  // Calls `read` with both, and compares what it returns.
  template <class Read>
  void expect_equal(const Read& read) const {
    EXPECT_EQ(read(std::span<const KvRun>(runs8_), eight_), read(std::span<const KvRun>(runs16_), eight_.wide()));
  }
  std::int32_t n() const { return n_; }

 private:
  AttentionShape eight_;
  std::int32_t n_;
  std::vector<std::byte> pages_;
  Buffer wide_;
  std::vector<KvRun> runs8_, runs16_;
};

class EightBitReaders : public ::testing::TestWithParam<std::tuple<DType, std::int32_t>> {
 protected:
  AttentionShape shape() const {
    const std::int32_t d = std::get<1>(GetParam());
    return {.group = 3,
            .head_dim = d,
            .kv_dtype = std::get<0>(GetParam()),
            .scale = 1.0f / std::sqrt(static_cast<float>(d))};
  }
  std::vector<float> queries(std::int32_t rows) const {
    Rng rng(9);
    std::vector<float> q(rows * shape().group * std::int64_t{shape().head_dim});
    for (float& x : q) x = static_cast<float>(rng.normal());
    return q;
  }
  ThreadPool pool_{kTestThreads};
  CpuContext context_{.pool = &pool_, .rounding = Rounding::kFixed};
};

using Bytes = std::vector<std::byte>;

TEST_P(EightBitReaders, DecodeAttention) {
  each_target([&] {
    const std::vector<float> q = queries(1);
    for (const std::int32_t n : {1, 3, 32, 77, 2500})
      TwoCaches(shape(), n, 1).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
        std::vector<float> out(q.size()), lse(s.group);
        const DecodePart part{.q = q.data(), .runs = runs};
        const DecodeHead head{.parts = {&part, 1}, .out = out.data(), .lse = lse.data()};
        attend_decode_cpu({&head, 1}, s, context_);
        out.insert(out.end(), lse.begin(), lse.end());
        return out;
      });
  });
}

TEST_P(EightBitReaders, PrefillAttention) {
  each_target([&] {
    const std::int32_t n_rows = 37;
    const std::vector<float> q = queries(n_rows);
    for (const std::int32_t n : {37, 150})
      TwoCaches(shape(), n, 2).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
        std::vector<float> out(q.size());
        const std::int64_t stride = std::int64_t{s.group} * s.head_dim;
        const PrefillPart part{.q = q.data(), .q_stride = stride, .runs = runs};
        const PrefillHead head{.parts = {&part, 1},
                               .n_rows = n_rows,
                               .out = reinterpret_cast<std::byte*>(out.data()),
                               .out_stride = stride};
        attend_prefill_cpu({&head, 1}, s, context_);
        return out;
      });
  });
}

TEST_P(EightBitReaders, BoxesAndCentroids) {
  each_target([&] {
    for (const BoxKind kind : {BoxKind::kMinMax, BoxKind::kCuboidMean})
      TwoCaches(shape(), 32, 3).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
        Bytes box(std::size_t{4} * s.head_dim);
        box_build_cpu(runs, s, kind, box.data());
        return box;
      });
    TwoCaches(shape(), 32, 4).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
      Bytes centroid(std::size_t{2} * s.head_dim);
      centroid_build_cpu(runs, s, centroid.data());
      return centroid;
    });
  });
}

TEST_P(EightBitReaders, ScoresOfBoxesAndOfKeys) {
  const std::vector<float> q = queries(1);
  each_target([&] {
    TwoCaches(shape(), 400, 5).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
      std::vector<float> scores(400 * s.group);
      key_score_cpu(q.data(), s, runs, scores.data(), 400);
      return scores;
    });
    TwoCaches(shape(), 64, 6).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
      Bytes boxes(std::size_t{4} * s.head_dim);
      box_build_cpu(runs, s, BoxKind::kMinMax, boxes.data());
      std::vector<float> scores(s.group);
      box_score_cpu(q.data(), s, boxes.data(), 1, scores.data(), 1);
      return scores;
    });
  });
}

TEST_P(EightBitReaders, OneBitKeys) {
  each_target([&] {
    for (const std::int32_t g : {32, 128})
      for (const OneBitLevels levels : {OneBitLevels::kMinMax, OneBitLevels::kMeanAbs})
        TwoCaches(shape(), g, 7).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
          Bytes bits(one_bit_group_bytes(s.head_dim, g));
          one_bit_build_cpu(runs, s, g, levels, bits.data());
          return bits;
        });
  });
}

TEST_P(EightBitReaders, KeysOfSummariesAndClusters) {
  each_target([&] {
    TwoCaches(shape(), 100, 8).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
      std::vector<float> keys(100 * std::int64_t{s.head_dim});
      load_keys_cpu(runs, s, keys.data());
      return keys;
    });
    for (const KmeansMetric metric : {KmeansMetric::kCosine, KmeansMetric::kDistance})
      TwoCaches(shape(), 100, 9).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
        std::vector<std::int32_t> cluster(100);
        KmeansScratch scratch;
        kmeans_cpu({.runs = runs, .shape = s, .n_clusters = 7, .iterations = 4, .metric = metric}, cluster.data(),
                   scratch);
        return cluster;
      });
  });
}

TEST_P(EightBitReaders, MassesOfFewAndOfManyRows) {
  each_target([&] {
    for (const std::int32_t n_rows : {2, 20}) {
      const std::vector<float> q = queries(n_rows), lse(n_rows * shape().group, 2.0f);
      TwoCaches(shape(), 150, 10).expect_equal([&](std::span<const KvRun> runs, const AttentionShape& s) {
        std::vector<float> mass(150 * s.group, 0.0f);
        const MassHead head{.q = q.data(),
                            .q_stride = std::int64_t{s.group} * s.head_dim,
                            .lse = lse.data(),
                            .lse_stride = s.group,
                            .n_rows = n_rows,
                            .runs = runs,
                            .mass = mass.data(),
                            .mass_stride = 150};
        attention_mass_cpu({&head, 1}, s, MassBy::kQueryHead, context_);
        return mass;
      });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Types, EightBitReaders,
                         ::testing::Combine(::testing::Values(DType::kInt8, DType::kFp8),
                                            ::testing::Values(8, 40, 64, 128)),
                         [](const auto& test) {
                           return std::string(dtype_name(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

// ---- methods

struct Named {
  const char* name;
  const char* overrides;
};

constexpr Named kMethods[] = {
    {"full", ""},
    {"window", ""},
    {"random", "unit=page:8,recent=16,sink=8"},
    {"oracle", "sink=3,recent=5"},
    {"quest", "dense=0"},
    {"quest", "unit=page:8,pool=meanS,select=layer,dense=none"},
    {"freekv", "unit=page:8,sink=8,recent=16"},
    {"freekv", "unit=page:8,sink=8,recent=16,gate=mass,dense=none"},
    {"freekv", "index=one_bit,unit=token,sink=0,recent=0"},
    {"fier", "dense=none"},
    {"fier", "open_group=score,dense=none"},
    {"louiskv", "unit=cluster:4,block=64,sink=4,recent=24,segment=4-16,tau=0.8"},
    {"louiskv", "unit=cluster:4,index=box,sink=4,recent=24,segment=4-16,schedule=every_step"},
    {"clusterkv", "unit=cluster:4,block=64,sink=4,recent=24,segment=12-12,answer=clusters,dense=none"},
    {"arkvale", "unit=page:8,sink=8,recent=16,dense=none"},
    {"mneme", "unit=page:8,sink=8,recent=16,dense=1"},
    {"mneme", "unit=page:8,sink=8,recent=16,index=moments,gate=cosine,domain=candidates,pool=meanQ"},
    {"mneme", "unit=token,sink=3,recent=0,index=sketch:6,schedule=every_step,domain=attention"},
    {"twilight", "dense=none"},
};

class EightBitMethods : public ::testing::TestWithParam<std::tuple<DType, Named>> {};

// Fills `to`, in bf16, with what readers of `from` see.
void copy_wide(const SequenceCache& from, SequenceCache& to) {
  const KvShape& s = from.shape();
  const AttentionShape tokens{.head_dim = s.head_dim, .kv_dtype = s.dtype};
  const std::int32_t first = to.length();
  to.extend(from.length() - first);
  for (std::int32_t t = first; t < to.length(); ++t)
    for (std::int32_t l = 0; l < s.n_layers; ++l)
      for (std::int32_t m = 0; m < s.n_kv_heads; ++m) {
        const std::byte* row = from.token(l, m, t);
        widen_tokens_cpu({&row, 1}, tokens, KvPart::kKeysAndValues, to.token(l, m, t));
      }
}

TEST_P(EightBitMethods, AnswerAsOverTheSameNumbersInBf16) {
  const auto& [dtype, method] = GetParam();
  const MethodShape eight{.n_layers = kLayers, .n_heads = 8, .n_kv_heads = 2, .head_dim = kHeadDim, .kv_dtype = dtype};
  MethodShape wide = eight;
  wide.kv_dtype = DType::kBF16;
  Recipe recipe = make_recipe(method.name, {.budget = 96, .sink = 0, .recent = 0});
  apply_overrides(method.overrides, recipe);
  ThreadPool pool(kTestThreads);
  DecodeAttention attention({.pool = &pool, .rounding = Rounding::kFixed}, kRope);
  Sequence a(eight, compile(recipe, eight), Values::kReal, 11), b(wide, compile(recipe, wide), Values::kReal, 11);
  const auto step = [&](Sequence& s, const MethodShape& shape, std::int32_t layer) {
    std::vector<float> out(a.width());
    const DecodeRow row{.cache = &s.cache(), .method = s.method(), .q = a.query(layer).data(), .out = out.data()};
    attention.run(layer, std::span(&row, 1), shape.attention());
    return out;
  };
  for (const std::int32_t n : {83, 230}) {
    a.append(n);
    copy_wide(a.cache(), b.cache());
    a.close_units(attention);
    b.close_units(attention);
    for (int i = 0; i < 20; ++i) {
      a.append(1);
      copy_wide(a.cache(), b.cache());
      a.new_queries();
      for (std::int32_t l = 0; l < kLayers; ++l) ASSERT_EQ(step(a, eight, l), step(b, wide, l)) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EightBitMethods,
                         ::testing::Combine(::testing::Values(DType::kInt8, DType::kFp8),
                                            ::testing::ValuesIn(kMethods)),
                         [](const auto& test) {
                           std::string name = std::string(dtype_name(std::get<0>(test.param))) + "_" +
                                              std::get<1>(test.param).name + "_" + std::get<1>(test.param).overrides;
                           for (char& c : name)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return name;
                         });

// Rotated keys are quantised again: within a step of the row's new scale.
TEST(EightBitKeys, RotatedKeysAreWithinAStep) {
  for (const DType dtype : {DType::kInt8, DType::kFp8}) {
    const AttentionShape shape{.head_dim = kHeadDim, .kv_dtype = dtype};
    ThreadPool pool(kTestThreads);
    RopeAngles angles;
    std::vector<std::int32_t> positions(40);
    for (std::int32_t i = 0; i < 40; ++i) positions[i] = 3 * i;
    angles.set(positions, kRope, {.pool = &pool});
    Rng rng(12);
    std::vector<std::byte> from(40 * shape.token_bytes()), to(from.size());
    for (int t = 0; t < 40; ++t) {
      float pair[2 * kHeadDim];
      for (float& x : pair) x = static_cast<float>(rng.normal());
      store_kv(pair, pair + kHeadDim, shape, from.data() + t * shape.token_bytes());
    }
    const KvRun run{from.data(), 40};
    rotate_keys_cpu({&run, 1}, shape, angles, 0, to.data());
    Buffer scratch;
    const WideTokens wide({&run, 1}, shape, scratch);
    std::vector<std::byte> exact(40 * wide.shape().token_bytes());
    rotate_keys_cpu(wide.runs(), wide.shape(), angles, 0, exact.data());
    for (int t = 0; t < 40; ++t) {
      const std::byte* token = to.data() + t * shape.token_bytes();
      float scale;
      std::memcpy(&scale, token + 2 * kHeadDim, sizeof(scale));
      for (int c = 0; c < 2 * kHeadDim; ++c) {
        const float is = load_kv(token, c, dtype, kHeadDim);
        const float must = load_half(exact.data() + t * wide.shape().token_bytes(), c, DType::kBF16);
        const float step = dtype == DType::kInt8 ? scale / 2 : std::max(std::abs(must) / 16, scale / 1024);
        if (c < kHeadDim)
          EXPECT_LE(std::abs(is - must), step * 1.01f + std::abs(must) / 256);
        else
          EXPECT_EQ(is, must) << "values are copied";
      }
    }
  }
}

}  // namespace
}  // namespace mneme

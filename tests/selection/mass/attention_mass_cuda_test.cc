// Attention mass on the device against the reference, the norm rule against the CPU's, and moves of tokens.
#include "src/selection/mass/attention_mass_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "src/base/rng.h"
#include "src/kv/token_copy.h"
#include "src/ops/attention/attention_cuda.h"
#include "src/selection/mass/keep_rule.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/ops/attention/attention_testing.h"

namespace mneme {
namespace {

using testing::kNaN;

AttentionShape shape_of(int group, int head_dim, DType dtype) {
  return {group, head_dim, dtype, 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

// Heads of one layer of several sequences in pages, each with its own holes; and their content for the reference.
struct Ragged {
  static constexpr std::int32_t kLayers = 2, kLayer = 1;
  AttentionShape shape;
  std::int32_t n_kv, n_sequences, max_pages;
  std::vector<std::byte> memory;
  std::vector<std::int32_t> blocks, shifts;
  std::vector<std::uint32_t> masks;
  DeviceArray<std::byte> memory_device{0};
  DeviceArray<std::int32_t> blocks_device{0}, shifts_device{0};
  DeviceArray<std::uint32_t> masks_device{0};

  Ragged(const AttentionShape& s, std::int32_t kv, std::int32_t sequences, std::int32_t tokens, unsigned seed)
      : shape(s), n_kv(kv), n_sequences(sequences), max_pages((tokens + kKvPageTokens - 1) / kKvPageTokens + 1) {
    std::mt19937 rng(seed);
    blocks.resize(static_cast<std::size_t>(n_sequences * kLayers * n_kv * max_pages));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), rng);
    masks.assign(blocks.size(), ~0u);
    shifts.assign(static_cast<std::size_t>(n_sequences * kLayers * n_kv), 0);
    const auto d = static_cast<std::size_t>(shape.head_dim);
    memory.resize(blocks.size() * kKvPageTokens * shape.token_bytes());
    std::normal_distribution<float> normal;
    std::vector<float> kv_of(2 * d);
    for (std::size_t at = 0; at < memory.size(); at += shape.token_bytes()) {
      for (float& v : kv_of) v = normal(rng);
      store_kv(kv_of.data(), kv_of.data() + d, shape, memory.data() + at);
    }
  }
  std::size_t head(std::int32_t sequence, std::int32_t kv_head) const {
    return static_cast<std::size_t>((sequence * kLayers + kLayer) * n_kv + kv_head);
  }
  std::byte* token(std::int32_t sequence, std::int32_t kv_head, std::int32_t slot) {
    const std::size_t entry =
        head(sequence, kv_head) * static_cast<std::size_t>(max_pages) + static_cast<std::size_t>(slot / kKvPageTokens);
    return memory.data() +
           (static_cast<std::size_t>(blocks[entry]) * kKvPageTokens + static_cast<std::size_t>(slot % kKvPageTokens)) *
               shape.token_bytes();
  }
  bool there(std::int32_t sequence, std::int32_t kv_head, std::int32_t slot) const {
    const std::size_t entry =
        head(sequence, kv_head) * static_cast<std::size_t>(max_pages) + static_cast<std::size_t>(slot / kKvPageTokens);
    return (masks[entry] >> (slot % kKvPageTokens) & 1) != 0;
  }
  // Drops about a third of the tokens before `end`, and shifts every head by its own offset.
  void drop(std::int32_t end, std::mt19937& rng) {
    for (std::int32_t s = 0; s < n_sequences; ++s)
      for (std::int32_t m = 0; m < n_kv; ++m) {
        shifts[head(s, m)] = static_cast<std::int32_t>(rng() % 40);
        for (std::int32_t at = 0; at < end - shifts[head(s, m)]; ++at)
          if (rng() % 3 == 0)
            masks[head(s, m) * static_cast<std::size_t>(max_pages) + static_cast<std::size_t>(at / kKvPageTokens)] &=
                ~(1u << (at % kKvPageTokens));
      }
  }
  std::vector<KvRun> runs(std::int32_t sequence, std::int32_t kv_head, std::int32_t n_slots) {
    std::vector<KvRun> r;
    for (std::int32_t at = 0; at < n_slots; ++at)
      if (there(sequence, kv_head, at)) r.push_back({token(sequence, kv_head, at), 1});
    return r;
  }
  KvTables tables(bool dropped) {
    memory_device = DeviceArray<std::byte>(std::span<const std::byte>(memory));
    blocks_device = DeviceArray<std::int32_t>(blocks);
    shifts_device = DeviceArray<std::int32_t>(shifts);
    masks_device = DeviceArray<std::uint32_t>(masks);
    KvTables t{.base = memory_device.data(),
               .blocks = blocks_device.data(),
               .sequence_stride = std::int64_t{kLayers} * n_kv * max_pages,
               .max_pages = max_pages,
               .n_kv_heads = n_kv,
               .head_dim = shape.head_dim,
               .f16 = shape.kv_dtype == DType::kF16};
    if (dropped) t.shifts = shifts_device.data(), t.masks = masks_device.data(), t.shift_stride = kLayers * n_kv;
    return t;
  }
};

struct Queries {
  std::vector<float> values;  // rounded to bf16
  std::vector<std::uint16_t> bits;
  Queries(std::size_t n, unsigned seed) {
    std::mt19937 rng(seed);
    for (const float v : testing::random_floats(n, rng)) {
      bits.push_back(bf16(v).bits);
      values.push_back(static_cast<float>(bf16(v)));
    }
  }
};

class CudaMassTest : public CudaTest {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }

  struct Measured {
    std::vector<float> mass, lse;
    std::int64_t stride;
  };
  // Mass of the last n_rows rows of sequences `slots`. lse: given, or computed (one sequence).
  Measured measure(const Ragged& kv, const KvTables& tables, const Queries& q, const std::vector<std::int32_t>& slots,
                   const std::vector<std::int32_t>& lengths, std::int32_t n_rows, MassBy by,
                   const std::vector<float>& given_lse) {
    const auto n = static_cast<std::int32_t>(slots.size());
    const std::int32_t heads = kv.n_kv * kv.shape.group, rows_of_mass = by == MassBy::kGroup ? kv.n_kv : heads;
    const std::int32_t most = *std::max_element(lengths.begin(), lengths.end());
    const std::int64_t stride = most + 3;
    const DeviceArray<std::uint16_t> q_device(q.bits);
    const DeviceArray<std::int32_t> slots_device(slots), lengths_device(lengths);
    DeviceArray<float> lse(static_cast<std::size_t>(n * n_rows * heads)),
        mass(static_cast<std::size_t>(n * rows_of_mass * stride));
    const DeviceArray<std::byte> scratch(attention_lse_scratch_bytes(n_rows, heads, most));
    AttentionMassCuda a{.q = q_device.data(),
                        .slots = slots_device.data(),
                        .lengths = lengths_device.data(),
                        .lse = lse.data(),
                        .mass = mass.data(),
                        .mass_stride = stride,
                        .sequence_stride = rows_of_mass * stride,
                        .n = n,
                        .n_rows = n_rows,
                        .n_heads = heads,
                        .max_tokens = most,
                        .scale = kv.shape.scale,
                        .by = by};
    if (given_lse.empty()) {
      attention_lse_cuda(a, tables, Ragged::kLayer, scratch.data(), context());
    } else {
      lse.put(given_lse);
    }
    attention_mass_cuda(a, tables, Ragged::kLayer, context());
    const std::vector<float> first = mass.get(stream);
    a.max_tokens = std::min(most, 300);  // fewer thread blocks: each takes several splits
    attention_mass_cuda(a, tables, Ragged::kLayer, context());
    Measured m{mass.get(stream), lse.get(stream), stride};
    EXPECT_TRUE(testing::same_bits(first, m.mass));
    return m;
  }

  void check(const AttentionShape& shape, std::int32_t n_kv, std::int32_t length, std::int32_t n_rows, bool dropped,
             MassBy by, unsigned seed) {
    SCOPED_TRACE(::testing::Message() << "D " << shape.head_dim << " group " << shape.group << " "
                                      << dtype_name(shape.kv_dtype) << ", " << length << " tokens, " << n_rows
                                      << " rows" << (dropped ? ", dropped" : "")
                                      << (by == MassBy::kGroup ? ", by group" : ""));
    Ragged kv(shape, n_kv, 2, length, seed);
    std::mt19937 rng(seed);
    if (dropped) kv.drop(length - n_rows, rng);
    const std::int32_t heads = n_kv * shape.group;
    const Queries q(static_cast<std::size_t>(n_rows * heads * shape.head_dim), seed + 1);
    const Measured got = measure(kv, kv.tables(dropped), q, {1}, {length}, n_rows, by, {});
    for (std::int32_t m = 0; m < n_kv; ++m) {
      const std::int32_t n_slots = length - kv.shifts[kv.head(1, m)];
      const std::vector<KvRun> runs = kv.runs(1, m, n_slots);
      const auto n = static_cast<std::int64_t>(runs.size());
      const std::int64_t width = std::int64_t{heads} * shape.head_dim;
      const float* rows_q = q.values.data() + std::int64_t{m} * shape.group * shape.head_dim;
      std::vector<float> out(static_cast<std::size_t>(n_rows * shape.group * shape.head_dim)),
          lse(static_cast<std::size_t>(n_rows * shape.group));
      const PrefillPart part{.q = rows_q, .q_stride = width, .runs = runs};
      const PrefillHead head{.parts = std::span(&part, 1),
                             .n_rows = n_rows,
                             .out = reinterpret_cast<std::byte*>(out.data()),
                             .out_stride = std::int64_t{shape.group} * shape.head_dim,
                             .lse = lse.data()};
      attend_prefill_ref(std::span(&head, 1), shape);
      for (std::int32_t i = 0; i < n_rows; ++i)
        for (std::int32_t g = 0; g < shape.group; ++g)
          ASSERT_LE(std::abs(got.lse[static_cast<std::size_t>(i * heads + m * shape.group + g)] -
                             lse[static_cast<std::size_t>(i * shape.group + g)]),
                    2e-3f)
              << "row " << i << ", head " << m << " " << g;
      std::vector<float> want(static_cast<std::size_t>(n * (by == MassBy::kGroup ? 1 : shape.group)), 0.0f);
      const MassHead mass{.q = rows_q,
                          .q_stride = width,
                          .lse = lse.data(),
                          .lse_stride = shape.group,
                          .n_rows = n_rows,
                          .runs = runs,
                          .mass = want.data(),
                          .mass_stride = n};
      attention_mass_ref(std::span(&mass, 1), shape, by);
      for (std::int32_t g = 0; g < (by == MassBy::kGroup ? 1 : shape.group); ++g) {
        const std::int64_t row = by == MassBy::kGroup ? m : m * shape.group + g;
        std::int64_t rank = 0;
        for (std::int32_t at = 0; at < n_slots; ++at) {
          const float v = got.mass[static_cast<std::size_t>(row * got.stride + at)];
          if (!kv.there(1, m, at)) {
            ASSERT_EQ(v, 0.0f) << at;
            continue;
          }
          const float w = want[static_cast<std::size_t>(g * n + rank++)];
          ASSERT_LE(std::abs(v - w), 2e-4f * (1e-3f + w)) << "head " << m << " " << g << ", slot " << at;
        }
        for (std::int64_t at = n_slots; at < got.stride; ++at)  // the poison is unchanged
          ASSERT_TRUE(std::isnan(got.mass[static_cast<std::size_t>(row * got.stride + at)])) << at;
      }
    }
  }
};

TEST_F(CudaMassTest, IsTheReference) {
  unsigned seed = 1;
  for (const std::int32_t head_dim : attention_head_dims_cuda())
    for (const int group : {1, 4, 7, 8})
      for (const auto& [tokens, rows] : {std::pair{1, 1},
                                         {31, 1},
                                         {32, 32},
                                         {33, 1},
                                         {33, 33},
                                         {257, 16},
                                         {300, 33},
                                         {521, 32},
                                         {1031, 1},
                                         {700, 500}})
        for (const bool dropped : {false, true}) {
          if (dropped && tokens - rows <= 60) continue;
          if (rows == 500 && (head_dim != 128 || group != 7)) continue;  // the reference takes seconds
          ++seed;
          check(shape_of(group, head_dim, seed % 2 == 0 ? DType::kBF16 : DType::kF16), 2, tokens, rows, dropped,
                seed % 3 == 0 ? MassBy::kGroup : MassBy::kQueryHead, seed);
        }
}

// Decode rows: one per sequence, some with length 0.
TEST_F(CudaMassTest, RowsOfSequencesAreEachAlone) {
  const AttentionShape shape = shape_of(4, 128, DType::kBF16);
  Ragged kv(shape, 2, 3, 600, 3);
  std::mt19937 rng(3);
  kv.drop(300, rng);
  const KvTables tables = kv.tables(true);
  const Queries q(4 * 8 * 128, 4);
  const std::vector<std::int32_t> slots = {2, 0, 1, -1}, lengths = {333, 600, 0, 0};
  const std::vector<float> lse(4 * 8, 3.0f);
  const Measured all = measure(kv, tables, q, slots, lengths, 1, MassBy::kGroup, lse);
  for (std::size_t i = 0; i < 2; ++i) {
    Queries own = q;
    own.bits.assign(q.bits.begin() + static_cast<std::ptrdiff_t>(i) * 8 * 128,
                    q.bits.begin() + static_cast<std::ptrdiff_t>(i + 1) * 8 * 128);
    const Measured one =
        measure(kv, tables, own, {slots[i]}, {lengths[i]}, 1, MassBy::kGroup, std::vector<float>(8, 3.0f));
    for (std::int32_t m = 0; m < 2; ++m)
      for (std::int32_t at = 0; at < lengths[i] - kv.shifts[kv.head(slots[i], m)]; ++at)
        ASSERT_EQ(all.mass[(i * 2 + static_cast<std::size_t>(m)) * static_cast<std::size_t>(all.stride) +
                           static_cast<std::size_t>(at)],
                  one.mass[static_cast<std::size_t>(m * one.stride + at)]);
  }
  for (std::size_t i = 4 * static_cast<std::size_t>(all.stride); i < all.mass.size(); ++i)
    ASSERT_TRUE(std::isnan(all.mass[i])) << "of a row that nobody looks at";
}

TEST_F(CudaMassTest, MomentsAreSumsOverRows) {
  for (const std::size_t n : {1u, 127u, 1025u}) {
    DeviceArray<float> sums(std::vector<float>(n, 0.0f)), squares(std::vector<float>(n, 0.0f)),
        entropy(std::vector<float>(n, 0.0f));
    std::vector<double> want_sums(n), want_squares(n), want_entropy(n);
    Rng rng(n);
    for (int row = 0; row < 3; ++row) {
      std::vector<float> mass(n);
      for (std::size_t i = 0; i < n; ++i) {
        const float a = mass[i] = i % 5 == 0 ? 0.0f : static_cast<float>(rng.uniform());
        want_sums[i] += a, want_squares[i] += double{a} * a, want_entropy[i] -= a * std::log(double{a} + 1e-10);
      }
      const DeviceArray<float> there(mass);
      add_moments_cuda(there.data(), static_cast<std::int64_t>(n), sums.data(), squares.data(), entropy.data(),
                       {.stream = stream.get()});
      stream.synchronize();
    }
    const auto expect_near = [&](const DeviceArray<float>& got, const std::vector<double>& want) {
      const std::vector<float> values = got.get(stream);
      for (std::size_t i = 0; i < n; ++i) ASSERT_LE(std::abs(double{values[i]} - want[i]), 2e-6) << i << " of " << n;
    };
    expect_near(sums, want_sums), expect_near(squares, want_squares), expect_near(entropy, want_entropy);
  }
}

TEST_F(CudaMassTest, NaNStaysWhereItIs) {
  const AttentionShape shape = shape_of(4, 64, DType::kBF16);
  Ragged kv(shape, 2, 1, 100, 5);
  kv.n_sequences = 1;
  std::vector<float> key(64, kNaN), value(64, 1.0f);
  store_kv(key.data(), value.data(), shape, kv.token(0, 0, 40));
  const KvTables tables = kv.tables(false);
  Queries q(2 * 8 * 64, 6);
  const std::vector<float> lse(2 * 8, 3.0f);
  const auto nans = [&](const Measured& m, std::int32_t row) {
    std::vector<std::int32_t> at;
    for (std::int32_t t = 0; t < 100; ++t)
      if (std::isnan(m.mass[static_cast<std::size_t>(row * m.stride + t)])) at.push_back(t);
    return at;
  };
  const Measured key_nan = measure(kv, tables, q, {0}, {100}, 2, MassBy::kGroup, lse);
  EXPECT_EQ(nans(key_nan, 0), std::vector<std::int32_t>{40});
  EXPECT_TRUE(nans(key_nan, 1).empty());
  q.bits[(1 * 8 + 5) * 64 + 3] = bf16(kNaN).bits;  // in the second row, head 1 of KV head 1
  const Measured query_nan = measure(kv, tables, q, {0}, {100}, 2, MassBy::kQueryHead, lse);
  EXPECT_EQ(nans(query_nan, 5).size(), 100u);
  EXPECT_TRUE(nans(query_nan, 4).empty());
}

// The tokens kept by one row's mass are the reference's: integers, so that scores are exact; equal scores have equal
// mass.
TEST_F(CudaMassTest, KeepsWhatTheReferenceKeeps) {
  const AttentionShape shape{1, 64, DType::kBF16, 1.0f};
  Rng rng(7);
  KeepScratch scratch;
  std::vector<TokenRange> here, there;
  int differ = 0;
  for (int round = 0; round < 40; ++round) {
    const auto length = static_cast<std::int32_t>(1 + rng.below(150));
    constexpr std::int32_t kHeads = 64;
    Ragged kv(shape, kHeads, 1, length, static_cast<unsigned>(round));
    std::vector<float> k(64), v(64, 0.0f);
    for (std::int32_t m = 0; m < kHeads; ++m)
      for (std::int32_t t = 0; t < length; ++t) {
        for (float& x : k) x = static_cast<float>(rng.below(3)) - 1;
        store_kv(k.data(), v.data(), shape, kv.token(0, m, t));
      }
    Queries q(kHeads * 64, 1);
    for (std::size_t i = 0; i < q.bits.size(); ++i)
      q.values[i] = rng.below(8) == 0 ? 1.0f : 0.0f, q.bits[i] = bf16(q.values[i]).bits;
    const Measured got = measure(kv, kv.tables(false), q, {0}, {length}, 1, MassBy::kGroup, {});
    for (std::int32_t m = 0; m < kHeads; ++m) {
      const std::vector<KvRun> runs = kv.runs(0, m, length);
      std::vector<float> scores;
      for (const KvRun& run : runs) {
        float score = 0;
        for (std::size_t d = 0; d < 64; ++d)
          score += q.values[static_cast<std::size_t>(m) * 64 + d] *
                   static_cast<float>(reinterpret_cast<const bf16*>(run.kv)[d]);
        scores.push_back(score);
      }
      const auto n_keep = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(length) + 2)),
                 sink = static_cast<std::int32_t>(rng.below(3)), recent = static_cast<std::int32_t>(rng.below(5));
      keep_largest(scores, sink, recent, n_keep, scratch, there);
      keep_largest(std::span(got.mass).subspan(static_cast<std::size_t>(m * got.stride), scores.size()), sink, recent,
                   n_keep, scratch, here);
      differ += here != there ? 1 : 0;
    }
  }
  EXPECT_EQ(differ, 0) << "of 2560";
}

TEST_F(CudaMassTest, TheNormsSuffixIsTheReferences) {
  Rng rng(8);
  for (int round = 0; round < 3000; ++round) {
    const auto n = static_cast<std::int32_t>(round % 10 == 0 ? 1 + rng.below(3000) : 1 + rng.below(70)),
               n_heads = static_cast<std::int32_t>(1 + rng.below(round % 50 == 0 ? 70 : 9));
    const std::int64_t stride = n + static_cast<std::int64_t>(rng.below(5));
    std::vector<float> mass(static_cast<std::size_t>(n_heads * stride));
    const std::uint64_t most = 1 + rng.below(4);  // with 1 all are 0
    for (float& v : mass) v = rng.below(3) == 0 ? static_cast<float>(rng.below(most)) : 0.0f;
    if (round % 40 == 7) mass[static_cast<std::size_t>(rng.below(mass.size()))] = kNaN;
    const NormRule rule{.loss = std::array{0.0f, 0.01f, 0.1f, 0.25f, 0.5f, 0.9f, 2.0f}[rng.below(7)],
                        .sink = static_cast<std::int32_t>(rng.below(7)),
                        .sink_in_norm = rng.below(2) == 0};
    const DeviceArray<float> mass_device(mass);
    const DeviceArray<std::int32_t> result(1);
    const DeviceArray<std::byte> scratch(norm_suffix_scratch_bytes(n_heads, n));
    norm_suffix_cuda({.mass = mass_device.data(),
                      .stride = stride,
                      .n_heads = n_heads,
                      .n = n,
                      .loss = rule.loss,
                      .sink = rule.sink,
                      .sink_in_norm = rule.sink_in_norm,
                      .result = result.data(),
                      .scratch = scratch.data()},
                     context());
    ASSERT_EQ(result.get(stream)[0],
              norm_suffix({.a = mass.data(), .stride = stride, .n_heads = n_heads, .n = n}, rule))
        << "round " << round << ": " << n << " tokens, " << n_heads << " heads, loss " << rule.loss << ", sink "
        << rule.sink << (rule.sink_in_norm ? " counted" : "");
  }
}

// From the scores of one row: the same suffix as from the masses.
TEST_F(CudaMassTest, TheSuffixOfScoresIsThatOfMasses) {
  for (const auto& [group, head_dim, length] : {std::tuple{4, 128, 3000}, {7, 64, 777}, {1, 64, 40}})
    for (const bool dropped : {false, true}) {
      if (dropped && length < 100) continue;
      const AttentionShape shape = shape_of(group, head_dim, DType::kBF16);
      Ragged kv(shape, 2, 1, length, 5);
      std::mt19937 rng(5);
      if (dropped) kv.drop(length - 1, rng);
      kv.shifts.assign(kv.shifts.size(), 0);
      const KvTables tables = kv.tables(dropped);
      const std::int32_t heads = 2 * group;
      const Queries q(static_cast<std::size_t>(heads * head_dim), 6);
      const DeviceArray<std::uint16_t> q_device(q.bits);
      const DeviceArray<std::int32_t> slot(std::vector<std::int32_t>{0}),
          length_device(std::vector<std::int32_t>{length}), result(1);
      const DeviceArray<float> lse(static_cast<std::size_t>(heads)), scores(static_cast<std::size_t>(heads * length)),
          mass(static_cast<std::size_t>(heads * length));
      const DeviceArray<std::byte> scratch(attention_lse_scratch_bytes(1, heads, length) +
                                           norm_suffix_scratch_bytes(heads, length));
      const AttentionMassCuda a{.q = q_device.data(),
                                .slots = slot.data(),
                                .lengths = length_device.data(),
                                .lse = lse.data(),
                                .mass = mass.data(),
                                .mass_stride = length,
                                .n = 1,
                                .n_rows = 1,
                                .n_heads = heads,
                                .max_tokens = length,
                                .scale = shape.scale,
                                .scores = scores.data(),
                                .by = MassBy::kQueryHead};
      attention_lse_cuda(a, tables, Ragged::kLayer, scratch.data(), context());
      attention_mass_cuda(a, tables, Ragged::kLayer, context());
      const std::vector<float> masses = mass.get(stream);
      for (const float loss : {0.01f, 0.1f, 0.4f, 0.8f}) {
        NormSuffixCuda rule{.mass = mass.data(),
                            .stride = length,
                            .n_heads = heads,
                            .n = length,
                            .loss = loss,
                            .sink = 4,
                            .result = result.data(),
                            .scratch = scratch.data()};
        norm_suffix_cuda(rule, context());
        const std::int32_t of_masses = result.get(stream)[0];
        rule.mass = scores.data(), rule.lse = lse.data();
        norm_suffix_cuda(rule, context());
        EXPECT_EQ(result.get(stream)[0], of_masses);
        EXPECT_EQ(of_masses, norm_suffix({.a = masses.data(), .stride = length, .n_heads = heads, .n = length},
                                         {.loss = loss, .sink = 4}));
      }
    }
}

TEST_F(CudaMassTest, MovesAreAsOneAfterTheOther) {
  Rng rng(9);
  for (const std::int32_t token_bytes : {256, 320, 512, 1024}) {
    constexpr std::int32_t kLists = 9, kTokens = 400;
    std::vector<std::byte> memory(static_cast<std::size_t>(kLists * kTokens * token_bytes));
    for (std::byte& b : memory) b = static_cast<std::byte>(rng.next());
    std::vector<TokenMove> moves;
    std::vector<std::int32_t> ends;
    for (std::int64_t list = 0; list < kLists; ++list) {
      for (std::int64_t from = static_cast<std::int64_t>(rng.below(5)), to = 0; from < kTokens;) {
        const auto n = static_cast<std::int32_t>(
            std::min<std::int64_t>(1 + static_cast<std::int64_t>(rng.below(8)), kTokens - from));
        if (from > to) moves.push_back({list * kTokens + to, list * kTokens + from, n});
        to += n, from += n + static_cast<std::int64_t>(rng.below(4));
      }
      ends.push_back(static_cast<std::int32_t>(moves.size()));
    }
    const DeviceArray<std::byte> there(memory);
    const DeviceArray<TokenMove> moves_device(moves);
    const DeviceArray<std::int32_t> ends_device(ends);
    move_tokens_cuda(there.data(), token_bytes, moves_device.data(), ends_device.data(), kLists, context());
    const auto at = [&](std::int64_t token) { return memory.data() + token * token_bytes; };
    for (const TokenMove& m : moves)
      std::memmove(at(m.to), at(m.from), static_cast<std::size_t>(m.n) * static_cast<std::size_t>(token_bytes));
    ASSERT_TRUE(there.get(stream) == memory) << token_bytes;
  }
}

}  // namespace
}  // namespace mneme

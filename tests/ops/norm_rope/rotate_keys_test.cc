#include "src/ops/norm_rope/rotate_keys.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/ops/attention/attention_testing.h"

namespace mneme {
namespace {

using namespace testing;

std::vector<std::byte> rotate(bool fast, const KvStore& kv, const AttentionShape& shape, const RopeAngles& angles,
                              std::int64_t first) {
  std::vector<std::byte> out(kv.tokens.size() * shape.token_bytes());
  (fast ? rotate_keys_cpu : rotate_keys_ref)(kv.runs, shape, angles, first, out.data());
  return out;
}

TEST(RotateKeys, IsTheReferenceUpToOneRounding) {
  ThreadPool pool(1);
  std::mt19937 rng(3);
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours})
      for (const std::int32_t d : {8, 16, 24, 64, 80, 128, 256}) {
        const AttentionShape shape{.group = 1, .head_dim = d, .kv_dtype = dtype};
        std::vector<std::int32_t> positions(100);
        std::iota(positions.begin(), positions.end(), 100000);
        const RopeAngles angles(positions, RopeTable::make({.pairs = pairs}, d, 1 << 20), {&pool});
        const KvStore kv(91, shape, Layout::kRagged, rng);
        const auto want = rotate(false, kv, shape, angles, 9);
        each_supported_target([&] {
          const auto got = rotate(true, kv, shape, angles, 9);
          for (std::size_t t = 0; t < kv.tokens.size(); ++t)
            for (std::size_t i = 0; i < 2 * static_cast<std::size_t>(d); ++i) {
              const float a = kv_at(want.data() + t * shape.token_bytes(), i, dtype),
                          b = kv_at(got.data() + t * shape.token_bytes(), i, dtype);
              const float ulp = dtype == DType::kBF16 ? 0x1.0p-7f : 0x1.0p-10f;
              ASSERT_LE(std::abs(a - b), i < static_cast<std::size_t>(d) ? ulp * std::abs(a) + 1e-6f : 0.0f)
                  << "token " << t << " element " << i << " of " << d;
            }
        });
      }
}

// Dot products of rotated queries with rotated keys depend on the distance only.
TEST(RotateKeys, KeepsWhatDistanceSays) {
  ThreadPool pool(1);
  std::mt19937 rng(4);
  const AttentionShape shape{.group = 1, .head_dim = 32, .kv_dtype = DType::kF16};
  const RopeTable table = RopeTable::make({}, 32, 1 << 20);
  const KvStore kv(1, shape, Layout::kOneRun, rng);
  double first = 0;
  for (const std::int32_t at : {0, 7, 1000, 60000}) {
    std::vector<float> q = random_floats(32, rng = std::mt19937(6));
    const std::int32_t position = at + 5;
    rope_ref(TensorView(reinterpret_cast<std::byte*>(q.data()), DType::kF32, {1, 1, 32}), std::span(&position, 1),
             table);
    const auto out = rotate(true, kv, shape, RopeAngles(std::span(&at, 1), table, {&pool}), 0);
    double dot = 0;
    for (std::size_t i = 0; i < 32; ++i) dot += q[i] * double{kv_at(out.data(), i, DType::kF16)};
    if (at == 0) first = dot;
    EXPECT_LE(std::abs(dot - first), 0.01) << at;
  }
}

TEST(RotateKeys, NothingIsNothing) {
  std::vector<std::byte> out(32, std::byte{0x5a});
  for (const auto& rotate_keys : {rotate_keys_cpu, rotate_keys_ref}) {
    rotate_keys({}, {.group = 1, .head_dim = 8}, RopeAngles(), 0, nullptr);
    rotate_keys({}, {.group = 1, .head_dim = 8}, RopeAngles(), 0, out.data());
    EXPECT_EQ(out, std::vector<std::byte>(32, std::byte{0x5a}));
  }
}

}  // namespace
}  // namespace mneme

// Rates of selection's kernels on one core, beside a plain read of as many bytes in the same run.
//
//   selection_bench --benchmark_filter=BoxScore --benchmark_min_time=0.2
//
// index_GB/s: bytes of index (or of keys, where an index is built) a second; an index of 32 MiB or more is beyond the
// caches.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

#include "apps/bench/micro/counters.h"
#include "apps/bench/plain_read.h"
#include "src/selection/index/box.h"
#include "src/selection/index/one_bit.h"
#include "src/selection/pool/group_pool.h"
#include "src/selection/topk/topk.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

using benchmark::State;

void report(State& state, std::int64_t bytes, std::int64_t items) {
  if (bytes > 0) state.counters["index_GB/s"] = per_second(bytes, 1e9);
  state.counters["item"] = seconds_each(items);
}

// Bytes that are bf16 values between 1 and 2, with signs.
std::vector<std::byte> half_values(std::size_t bytes) {
  std::mt19937 rng(1);
  std::vector<std::byte> v(bytes);
  auto* bits = reinterpret_cast<std::uint16_t*>(v.data());
  for (std::size_t i = 0; i < bytes / 2; ++i) bits[i] = (rng() & 0x807f) | bf16(1.0f).bits;
  return v;
}

std::vector<float> normals(std::size_t n) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

void PlainRead(State& state) {
  const std::size_t bytes = state.range(0) << 10;
  const auto v = half_values(bytes);
  for (auto _ : state) benchmark::DoNotOptimize(sum_words(reinterpret_cast<const std::uint64_t*>(v.data()), bytes / 8));
  report(state, bytes, bytes);
}
BENCHMARK(PlainRead)->ArgNames({"KiB"})->Arg(432)->Arg(4096)->Arg(256 << 10);

AttentionShape shape_of(std::int32_t group, std::int32_t dim) {
  return {.group = group, .head_dim = dim};
}

// KiB of index, D, G.
void BoxScore(State& state) {
  const AttentionShape shape = shape_of(argument(state, 2), argument(state, 1));
  const std::int64_t n = (state.range(0) << 10) / shape.token_bytes();
  const auto boxes = half_values(n * shape.token_bytes());
  const auto q = normals(shape.group * shape.head_dim);
  std::vector<float> scores(shape.group * n);
  for (auto _ : state) {
    box_score_cpu(q.data(), shape, boxes.data(), n, scores.data(), n);
    benchmark::ClobberMemory();
  }
  report(state, boxes.size(), n);
}
BENCHMARK(BoxScore)
    ->ArgNames({"KiB", "D", "G"})
    ->ArgsProduct({{432, 4096, 256 << 10}, {64, 128}, {4}})
    ->ArgsProduct({{432}, {128}, {1, 8}});

// Tokens a run, D, G: 16 MiB of keys and values.
void KeyScore(State& state) {
  const AttentionShape shape = shape_of(argument(state, 2), argument(state, 1));
  const std::size_t bytes = std::size_t{16} << 20;
  const auto kv = half_values(bytes);
  const std::size_t n = bytes / shape.token_bytes();
  const std::size_t run = state.range(0);
  std::vector<KvRun> runs;
  for (std::size_t t = 0; t < n; t += run) runs.push_back({kv.data() + t * shape.token_bytes(), argument(state, 0)});
  const auto q = normals(shape.group * shape.head_dim);
  std::vector<float> scores(shape.group * n);
  for (auto _ : state) {
    key_score_cpu(q.data(), shape, runs, scores.data(), n);
    benchmark::ClobberMemory();
  }
  report(state, bytes / 2, n);
}
BENCHMARK(KeyScore)->ArgNames({"run", "D", "G"})->ArgsProduct({{1, 32}, {128}, {4}});

// Pages of 32 tokens; 0 min-max, 1 cuboid-mean; D.
void BoxBuild(State& state) {
  const AttentionShape shape = shape_of(1, argument(state, 1));
  const std::size_t bytes = std::size_t{4} << 20;
  const auto kv = half_values(bytes);
  const std::size_t page = 32 * shape.token_bytes();
  std::vector<std::byte> box(shape.token_bytes());
  for (auto _ : state)
    for (std::size_t at = 0; at + page <= bytes; at += page) {
      const KvRun run{kv.data() + at, 32};
      box_build_cpu({&run, 1}, shape, state.range(0) == 0 ? BoxKind::kMinMax : BoxKind::kCuboidMean, box.data());
      benchmark::ClobberMemory();
    }
  report(state, bytes / 2, bytes / shape.token_bytes());
}
BENCHMARK(BoxBuild)->ArgNames({"mean", "D"})->ArgsProduct({{0, 1}, {64, 128}});

// KiB of index, D, G, tokens a group. head_GB/s: bytes of index times query heads.
void OneBitScore(State& state) {
  const AttentionShape shape = shape_of(argument(state, 2), argument(state, 1));
  const std::int32_t g = argument(state, 3);
  const std::size_t bytes = one_bit_group_bytes(shape.head_dim, g);
  const std::int64_t n = (state.range(0) << 10) / bytes;
  // The same keys in every group: what they are changes nothing.
  const auto keys = half_values(g * shape.token_bytes());
  std::vector<std::byte> groups(n * bytes);
  const KvRun run{keys.data(), g};
  one_bit_build_cpu({&run, 1}, shape, g, OneBitLevels::kMinMax, groups.data());
  for (std::int64_t i = 1; i < n; ++i) std::copy_n(groups.data(), bytes, groups.data() + i * bytes);
  const auto q = normals(shape.group * shape.head_dim);
  std::vector<float> scores(shape.group * n * g);
  for (auto _ : state) {
    one_bit_score_cpu(q.data(), shape, groups.data(), n, g, scores.data(), n * g);
    benchmark::ClobberMemory();
  }
  report(state, groups.size(), n * g);
  state.counters["head_GB/s"] = per_second(groups.size() * shape.group, 1e9);
}
BENCHMARK(OneBitScore)
    ->ArgNames({"KiB", "D", "G", "g"})
    ->ArgsProduct({{864, 256 << 10}, {64, 128}, {4}, {32}})
    ->ArgsProduct({{864}, {128}, {1, 2, 8}, {32}})
    ->ArgsProduct({{864}, {128}, {4}, {64, 128, 256}});

// Tokens a group, 0 minmax, 1 meanabs; D = 128.
void OneBitBuild(State& state) {
  const AttentionShape shape = shape_of(1, 128);
  const std::int32_t g = argument(state, 0);
  const std::size_t bytes = std::size_t{4} << 20;
  const auto kv = half_values(bytes);
  const std::size_t group = g * shape.token_bytes();
  std::vector<std::byte> out(one_bit_group_bytes(shape.head_dim, g));
  for (auto _ : state)
    for (std::size_t at = 0; at + group <= bytes; at += group) {
      const KvRun run{kv.data() + at, g};
      one_bit_build_cpu({&run, 1}, shape, g, state.range(1) == 0 ? OneBitLevels::kMinMax : OneBitLevels::kMeanAbs,
                        out.data());
      benchmark::ClobberMemory();
    }
  report(state, bytes / 2, bytes / shape.token_bytes());
}
BENCHMARK(OneBitBuild)->ArgNames({"g", "means"})->ArgsProduct({{32, 256}, {0, 1}});

// n, k. Eight rows in turn, so that no row's branches are learnt.
void Topk(State& state) {
  const std::size_t n = state.range(0);
  const std::int32_t k = argument(state, 1);
  const auto scores = normals(8 * n);
  std::vector<std::int32_t> ids(k);
  TopkScratch scratch;
  std::size_t row = 0;
  for (auto _ : state) {
    topk_cpu({scores.data() + row * n, n}, k, ids.data(), scratch);
    benchmark::ClobberMemory();
    row = (row + 1) % 8;
  }
  report(state, 0, n);
}
BENCHMARK(Topk)
    ->ArgNames({"n", "k"})
    ->Args({850, 48})
    ->Args({4096, 64})
    ->Args({27000, 512})
    ->Args({27000, 2048})
    ->Args({1000000, 2048});

constexpr Pool kPools[] = {Pool::kMaxQk, Pool::kMeanQk, Pool::kMaxS, Pool::kMeanS};

// Index in kPools; units, G. item: one unit of all its heads.
void PoolScores(State& state) {
  const std::int64_t n = state.range(1);
  const std::int32_t group = argument(state, 2);
  auto scores = normals(group * n);
  std::vector<float> pooled(n);
  for (auto _ : state) {
    group_pool_cpu(scores.data(), n, group, n, kPools[state.range(0)], 0.125f, pooled.data());
    benchmark::ClobberMemory();
  }
  report(state, 0, n);
}
BENCHMARK(PoolScores)
    ->ArgNames({"pool", "n", "G"})
    ->ArgsProduct({{0, 1, 2, 3}, {850, 27000}, {4}})
    ->ArgsProduct({{3}, {850}, {1, 5, 8}});

void Cosine(State& state) {
  const auto a = normals(128), b = normals(128);
  for (auto _ : state) benchmark::DoNotOptimize(cosine(a.data(), b.data(), 128));
  report(state, 0, 1);
}
BENCHMARK(Cosine);

}  // namespace
}  // namespace mneme

BENCHMARK_MAIN();

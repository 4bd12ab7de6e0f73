// Attention beside what bounds it on this machine: decode beside a plain read of the same bytes, prefill beside the
// bf16 GEMM of oneDNN. Figures are comparable only within one run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "apps/bench/micro/counters.h"
#include "src/base/underlying.h"
#include "src/ops/attention/attention.h"
#include "src/tensor/buffer.h"

#ifdef MNEME_HAVE_ONEDNN
#include <omp.h>

#include <dnnl.hpp>
#endif

namespace mneme {
namespace {

constexpr int kPage = 32;

ThreadPool& pool() {
  static ThreadPool p(available_cpus(), Pinning::kPinned);
  return p;
}

AttentionShape shape_of(int group, int head_dim, DType dtype) {
  return {group, head_dim, dtype, 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

std::vector<float> random_floats(std::size_t n) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

// Random keys and values of `heads` KV heads; the pages of a head lie in shuffled order among those of all.
struct Cache {
  Buffer bytes;
  std::vector<std::vector<KvRun>> runs;

  Cache(int heads, int n_tokens, const AttentionShape& shape) : runs(heads) {
    const std::size_t pages = (n_tokens + kPage - 1) / kPage;
    const std::size_t page_bytes = shape.token_bytes() * kPage;
    const std::size_t n_pages = pages * heads;
    bytes.reserve(n_pages * page_bytes);
    const std::size_t d = shape.head_dim;
    const std::vector<float> values = random_floats(4096 + 2 * d);
    for (std::size_t t = 0; t < n_pages * kPage; ++t) {
      const float* kv = values.data() + t * 37 % 4096;
      store_kv(kv, kv + d, shape, bytes.data() + t * shape.token_bytes());
    }
    std::vector<std::size_t> place(n_pages);
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), std::mt19937(2));
    for (std::size_t h = 0; h < runs.size(); ++h)
      for (std::size_t p = 0; p < pages; ++p)
        runs[h].push_back(
            {bytes.data() + place[h * pages + p] * page_bytes, std::min(kPage, count32(n_tokens - p * kPage))});
  }
};

// Arguments 2, 3 and 5: group, head_dim, dtype.
AttentionShape shape_of(const benchmark::State& s) {
  return shape_of(argument(s, 2), argument(s, 3), static_cast<DType>(s.range(5)));
}

// args: KV heads a layer, layers, group, head_dim, tokens, dtype
struct DecodeSetup {
  int heads, layers;
  AttentionShape shape;
  Cache cache;
  std::vector<float> q, out;

  explicit DecodeSetup(const benchmark::State& s)
      : heads(argument(s, 0)),
        layers(argument(s, 1)),
        shape(shape_of(s)),
        cache(heads * layers, argument(s, 4), shape),
        q(random_floats(shape.group * shape.head_dim)),
        out(heads * q.size()) {}

  std::int64_t kv_bytes(const benchmark::State& s) const { return heads * layers * s.range(4) * shape.token_bytes(); }
};

void report_rate(benchmark::State& state, std::int64_t bytes) {
  state.counters["GB/s"] = per_second(bytes, 1e9);
}

void report_flops(benchmark::State& state, std::int64_t flops) {
  state.counters["GFLOP/s"] = per_second(flops, 1e9);
}

void decode(benchmark::State& state) {
  DecodeSetup s(state);
  for (auto _ : state) {
    for (int layer = 0; layer < s.layers; ++layer) {
      std::vector<DecodePart> parts;
      std::vector<DecodeHead> heads;
      for (int h = 0; h < s.heads; ++h) parts.push_back({s.q.data(), s.cache.runs[layer * s.heads + h], nullptr});
      for (int h = 0; h < s.heads; ++h) heads.push_back({{&parts[h], 1}, s.out.data() + h * s.q.size(), nullptr});
      attend_decode_cpu(heads, s.shape, {&pool(), Rounding::kFast});
    }
  }
  report_rate(state, s.kv_bytes(state));
}

std::uint64_t sum_words(const std::byte* p, std::size_t bytes) {
  const auto* w = reinterpret_cast<const std::uint64_t*>(p);
  std::uint64_t sums[16] = {};
  for (std::size_t i = 0; i < bytes / 8; i += 16)
    for (std::size_t j = 0; j < 16; ++j) sums[j] += w[i + j];
  return std::accumulate(sums, sums + 16, std::uint64_t{0});
}

// The same pages in the same order, summed up.
void read_pages(benchmark::State& state) {
  DecodeSetup s(state);
  std::vector<KvRun> runs;
  for (const auto& r : s.cache.runs) runs.insert(runs.end(), r.begin(), r.end());
  for (auto _ : state) {
    pool().parallel_for(std::ssize(runs), kPage, [&](std::int64_t begin, std::int64_t end, int) {
      std::uint64_t sum = 0;
      for (std::int64_t r = begin; r < end; ++r) sum += sum_words(runs[r].kv, runs[r].n_tokens * s.shape.token_bytes());
      benchmark::DoNotOptimize(sum);
    });
  }
  report_rate(state, s.kv_bytes(state));
}

// The same bytes from first to last.
void read_straight(benchmark::State& state) {
  DecodeSetup s(state);
  constexpr std::size_t kPiece = std::size_t{1} << 18;
  const std::size_t pieces = s.cache.bytes.size() / kPiece;
  for (auto _ : state) {
    pool().parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t, int) {
      std::uint64_t sum = sum_words(s.cache.bytes.data() + begin * kPiece, kPiece);
      benchmark::DoNotOptimize(sum);
    });
  }
  report_rate(state, pieces * kPiece);
}

// One chunk of a prompt: `rows` new tokens over `tokens` in all. FLOP: 4 D for every (query, visible key).
void prefill(benchmark::State& state) {
  const std::size_t n_heads = state.range(0);
  const int rows = argument(state, 1);
  const int tokens = argument(state, 4);
  const AttentionShape shape = shape_of(state);
  const Cache cache(argument(state, 0), tokens, shape);
  const std::size_t width = shape.group * shape.head_dim;
  const std::int64_t stride = n_heads * width;
  const std::vector<float> q = random_floats(rows * stride);
  std::vector<bf16> out(q.size());
  std::vector<PrefillPart> parts;
  for (std::size_t h = 0; h < n_heads; ++h) parts.push_back({q.data() + h * width, stride, cache.runs[h]});
  std::vector<PrefillHead> heads;
  for (std::size_t h = 0; h < n_heads; ++h)
    heads.push_back(
        {{&parts[h], 1}, rows, reinterpret_cast<std::byte*>(out.data() + h * width), stride, DType::kBF16, nullptr});
  for (auto _ : state) attend_prefill_cpu(heads, shape, {&pool(), Rounding::kFast});
  const std::int64_t pairs = std::int64_t{rows} * tokens - std::int64_t{rows} * (rows - 1) / 2;
  report_flops(state, 4 * stride * pairs);
}

#ifdef MNEME_HAVE_ONEDNN
// n x n x n in bf16, one GEMM a worker: what oneDNN reaches here.
void library_gemm(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::memory::desc in({n, n}, dnnl::memory::data_type::bf16, dnnl::memory::format_tag::ab);
  const dnnl::memory::desc weights({n, n}, dnnl::memory::data_type::bf16, dnnl::memory::format_tag::any);
  const dnnl::memory::desc sums({n, n}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab);
  const dnnl::matmul::primitive_desc plan({in, weights, sums}, engine);
  const dnnl::matmul gemm(plan);
  struct Worker {
    dnnl::stream stream;
    dnnl::memory a, b, c;
  };
  std::vector<Worker> workers;
  for (int w = 0; w < pool().size(); ++w)
    workers.push_back({dnnl::stream(engine), dnnl::memory(plan.src_desc(), engine),
                       dnnl::memory(plan.weights_desc(), engine), dnnl::memory(plan.dst_desc(), engine)});
  for (auto _ : state)
    pool().run([&](int w) {
      omp_set_num_threads(1);
      Worker& x = workers[w];
      gemm.execute(x.stream, {{DNNL_ARG_SRC, x.a}, {DNNL_ARG_WEIGHTS, x.b}, {DNNL_ARG_DST, x.c}});
      x.stream.wait();
    });
  report_flops(state, 2 * n * n * n * pool().size());
}
BENCHMARK(library_gemm)->ArgName("n")->Arg(1024)->UseRealTime();
#endif

constexpr int kBf16 = underlying(DType::kBF16);
constexpr int kF16 = underlying(DType::kF16);
const std::vector<std::string> kDecodeArgs = {"heads", "layers", "G", "D", "tokens", "dtype"};

BENCHMARK(read_straight)->ArgNames(kDecodeArgs)->Args({2, 8, 4, 64, 27000, kBf16})->UseRealTime();
BENCHMARK(read_pages)
    ->ArgNames(kDecodeArgs)
    ->Args({2, 8, 4, 64, 27000, kBf16})
    ->Args({8, 4, 4, 128, 8192, kBf16})
    ->UseRealTime();
BENCHMARK(decode)
    ->ArgNames(kDecodeArgs)
    ->Args({2, 8, 4, 64, 27000, kBf16})
    ->Args({2, 8, 4, 64, 27000, kF16})
    ->Args({2, 8, 1, 64, 27000, kBf16})
    ->Args({2, 8, 5, 64, 27000, kBf16})
    ->Args({2, 8, 7, 64, 27000, kBf16})
    ->Args({2, 8, 8, 64, 27000, kBf16})
    ->Args({8, 4, 4, 128, 8192, kBf16})
    ->Args({8, 4, 7, 128, 8192, kBf16})
    ->Args({8, 4, 8, 128, 8192, kBf16})
    ->Args({2, 1, 4, 64, 1024, kBf16})
    ->Args({2, 1, 8, 64, 1024, kBf16})
    ->Args({512, 1, 4, 64, 500, kBf16})
    ->UseRealTime();

const std::vector<std::string> kPrefillArgs = {"heads", "rows", "G", "D", "tokens", "dtype"};
BENCHMARK(prefill)
    ->ArgNames(kPrefillArgs)
    ->Args({2, 1024, 4, 64, 1024, kBf16})
    ->Args({2, 1024, 4, 64, 8192, kBf16})
    ->Args({2, 1024, 4, 64, 27000, kBf16})
    ->Args({2, 1024, 4, 64, 8192, kF16})
    ->Args({2, 1024, 1, 64, 8192, kBf16})
    ->Args({2, 1024, 7, 64, 8192, kBf16})
    ->Args({2, 1024, 4, 128, 8192, kBf16})
    ->Args({2, 1024, 4, 128, 27000, kBf16})
    ->Args({2, 16, 4, 64, 8192, kBf16})
    ->UseRealTime();

}  // namespace
}  // namespace mneme

BENCHMARK_MAIN();

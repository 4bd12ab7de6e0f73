// GEMMs and the small kernels, beside a plain read of the same bytes and beside oneDNN in the same run.
//
//   build/bench/kernels_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "apps/bench/micro/counters.h"
#include "src/base/thread_pool.h"
#include "src/ops/gemm/gemm.h"
#include "src/ops/norm_rope/pointwise.h"
#include "src/ops/norm_rope/rope.h"
#include "src/ops/recurrent/gated_delta.h"
#include "src/tensor/buffer.h"

#ifdef MNEME_HAVE_ONEDNN
#include <omp.h>
#include <dnnl.hpp>
#endif

namespace mneme {
namespace {

ThreadPool& pool() {
  static ThreadPool p(available_cpus(), Pinning::kPinned);
  return p;
}

Tensor random_tensor(DType dtype, std::int64_t rows, std::int64_t columns) {
  Tensor line(DType::kF32, {1, columns}), t(dtype, {rows, columns});
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (std::int64_t j = 0; j < columns; ++j) line.as<float>()[j] = uniform(rng);
  for (std::int64_t i = 0; i < rows; ++i) quantise_rows(line, t.view().rows(i, i + 1));
  return t;
}

void add_rates(benchmark::State& state, std::int64_t flops, std::int64_t bytes) {
  state.counters["GFLOP/s"] = per_second(flops);
  state.counters["GB/s"] = per_second(bytes);
}

// Two threads that only read: the limit that skinny GEMMs are compared with.
void plain_read(benchmark::State& state) {
  const std::int64_t bytes = state.range(0) << 20;
  Buffer buffer(bytes);
  std::memset(buffer.data(), 1, buffer.size());
  const std::int64_t words = bytes / 8;
  for (auto _ : state) {
    pool().parallel_for(words, words / pool().size(), [&](std::int64_t begin, std::int64_t end, int) {
      const auto* p = buffer.as<std::uint64_t>();
      std::uint64_t sum[32] = {};
      for (; begin + 32 <= end; begin += 32)
        for (int i = 0; i < 32; ++i) sum[i] |= p[begin + i];
      for (auto s : sum) benchmark::DoNotOptimize(s);
    });
  }
  add_rates(state, 0, bytes);
}

// Args: m, k, n. n rows of weights in as many matrices as fill `mib` MiB, each used in turn, so that they come from
// that level.
void gemm_case(benchmark::State& state, DType type, Rounding rounding) {
  const std::int64_t m = state.range(0), k = state.range(1), n = state.range(2);
  const std::size_t level = std::size_t{1 << 20} * state.range(3);
  std::vector<Tensor> tensors;
  std::vector<WeightMatrix> weights;
  do {
    tensors.push_back(random_tensor(type, n, k));
    weights.emplace_back(ConstTensorView(tensors.back()));
  } while (weights.size() * weights.back().bytes() < level);
  const Tensor x = random_tensor(gemm_input_dtype(weights[0], m), m, k);
  Tensor y(DType::kF32, {m, n});
  std::size_t next = 0;
  for (auto _ : state) {
    const GemmOutput out{.w = &weights[next++ % weights.size()], .y = y};
    gemm_cpu(x, {&out, 1}, {.pool = &pool(), .rounding = rounding});
  }
  add_rates(state, 2 * m * k * n, weights[0].bytes());
}

void fork_join(benchmark::State& state) {
  for (auto _ : state) pool().run([](int) {});
}

#ifdef MNEME_HAVE_ONEDNN
// oneDNN as the pool's workers would call it: each worker has half of the outputs, weights bf16 in the checkpoint's
// layout.
void onednn_bf16(benchmark::State& state) {
  using dnnl::memory;
  const std::int64_t m = state.range(0), k = state.range(1), n = state.range(2) / pool().size();
  const Tensor x = random_tensor(DType::kBF16, m, k), w = random_tensor(DType::kBF16, n * pool().size(), k);
  Tensor y(DType::kF32, {m, n * pool().size()});
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const memory::desc x_desc({m, k}, memory::data_type::bf16, memory::dims{k, 1});
  const memory::desc w_desc({k, n}, memory::data_type::bf16, memory::dims{1, k});
  const memory::desc y_desc({m, n}, memory::data_type::f32, memory::dims{n * pool().size(), 1});
  omp_set_num_threads(1);
  const dnnl::matmul matmul(dnnl::matmul::primitive_desc({x_desc, w_desc, y_desc}, engine));
  for (auto _ : state) {
    pool().run([&](int worker) {
      omp_set_num_threads(1);
      dnnl::stream stream(engine);
      const memory xm(x_desc, engine, x.view().data()), wm(w_desc, engine, w.view().row(worker * n)),
          ym(y_desc, engine, y.as<float>() + worker * n);
      matmul.execute(stream, {{DNNL_ARG_SRC, xm}, {DNNL_ARG_WEIGHTS, wm}, {DNNL_ARG_DST, ym}});
      stream.wait();
    });
  }
  add_rates(state, 2 * m * k * n * pool().size(), 0);
}
#endif

void rms_norm(benchmark::State& state) {
  const std::int64_t n = state.range(0), h = state.range(1);
  const Tensor x = random_tensor(DType::kF32, n, h), weight = random_tensor(DType::kF32, 1, h);
  const Tensor y(DType::kBF16, {n, h});
  for (auto _ : state) rms_norm_cpu(x, weight.as<float>(), 1e-5, y, {.pool = &pool()});
  add_rates(state, 0, n * h * 6);
}

void swiglu(benchmark::State& state) {
  const std::int64_t n = state.range(0), ffn = state.range(1);
  const Tensor gate = random_tensor(DType::kF32, n, ffn), up = random_tensor(DType::kF32, n, ffn);
  const Tensor y(DType::kBF16, {n, ffn});
  for (auto _ : state) swiglu_cpu(gate, up, y, {.pool = &pool()});
  add_rates(state, 0, n * ffn * 10);
}

// Angles once a step, or again in every call.
void rope(benchmark::State& state, bool angles_once) {
  const std::int64_t n = state.range(0), heads = state.range(1), head_dim = state.range(2);
  const Tensor x = random_tensor(DType::kF32, n, heads * head_dim);
  const TensorView view(x.view().data(), DType::kF32, {n, heads, head_dim});
  const RopeTable table = RopeTable::make({}, head_dim, 0);
  std::vector<std::int32_t> positions(n);
  std::iota(positions.begin(), positions.end(), 0);
  const RopeAngles angles(positions, table, {.pool = &pool()});
  for (auto _ : state) {
    if (angles_once)
      rope_cpu(view, angles, {.pool = &pool()});
    else
      rope_cpu(view, positions, table, {.pool = &pool()});
  }
  add_rates(state, 0, n * heads * head_dim * 8);
}

// Gated DeltaNet of Qwen3.5-27B: n rows in each of several layers, whose states are 3.1 MiB each.
void gated_delta(benchmark::State& state) {
  constexpr DeltaShape kShape{.n_k_heads = 16, .n_v_heads = 48, .d_k = 128, .d_v = 128, .taps = 4};
  const std::int64_t n = state.range(0), layers = state.range(1);
  const Tensor states(DType::kF32, {layers, kShape.input_floats() + kShape.state_floats()});
  std::memset(states.view().data(), 0, states.bytes());
  const Tensor x = random_tensor(DType::kF32, n, kShape.channels()), out(DType::kF32, {n, kShape.value_width()});
  const Tensor conv = random_tensor(DType::kF32, kShape.channels(), kShape.taps);
  const Tensor gates = random_tensor(DType::kF32, n, kShape.n_v_heads);
  const std::vector<float> a(kShape.n_v_heads, -1.0f);
  for (auto _ : state)
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      float* const inputs = states.view().row_as<float>(layer);
      const GatedDeltaRows rows{.n = n,
                                .x = x.as<float>(),
                                .beta = gates.as<float>(),
                                .alpha = gates.as<float>(),
                                .out = out.as<float>(),
                                .inputs = inputs,
                                .state = inputs + kShape.input_floats()};
      gated_delta_cpu(std::span(&rows, 1), {.conv = conv.as<float>(), .a = a.data(), .dt = a.data()}, kShape,
                      {.pool = &pool()});
    }
  add_rates(state, n * layers * kShape.state_floats() * 7, 2 * layers * kShape.state_floats() * 4);
}

// The shipped model's shapes, and those of models of 1B and 8B.
void many_rows(benchmark::internal::Benchmark* b) {
  for (const auto& [k, n] : {std::pair{512, 768}, {512, 2816}, {1408, 512}, {2048, 2048}, {4096, 4096}, {14336, 1024}})
    b->Args({1024, k, n, 0});
  for (const int m : {8, 16, 32, 64, 128}) b->Args({m, 2048, 2048, 0});
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void few_rows(benchmark::internal::Benchmark* b) {
  for (const auto& [k, n] : {std::pair{512, 768}, {512, 2816}, {1408, 512}, {512, 8192}}) b->Args({1, k, n, 16});
  for (const int m : {1, 2, 4, 7}) b->Args({m, 2048, 8192, 256});
  b->Args({1, 512, 768, 0})->Args({4, 512, 768, 16});
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK(plain_read)->Arg(1)->Arg(16)->Arg(256)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(fork_join)->UseRealTime();
#ifdef MNEME_HAVE_ONEDNN
BENCHMARK(onednn_bf16)->Apply(many_rows);
#endif
BENCHMARK_CAPTURE(gemm_case, bf16, DType::kBF16, Rounding::kFast)->Apply(many_rows)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, q8_0, DType::kQ8_0, Rounding::kFast)->Apply(many_rows)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, q4_0, DType::kQ4_0, Rounding::kFast)->Apply(many_rows)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, q4_1, DType::kQ4_1, Rounding::kFast)->Apply(many_rows)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, q4_k, DType::kQ4_K, Rounding::kFast)->Apply(many_rows)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, q6_k, DType::kQ6_K, Rounding::kFast)->Apply(many_rows)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, iq4_nl, DType::kIQ4_NL, Rounding::kFast)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, f32, DType::kF32, Rounding::kFast)->Apply(many_rows)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, f16, DType::kF16, Rounding::kFast)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, q8_0_fixed, DType::kQ8_0, Rounding::kFixed)->Apply(few_rows);
BENCHMARK_CAPTURE(gemm_case, bf16_fixed, DType::kBF16, Rounding::kFixed)->Apply(few_rows);

BENCHMARK(rms_norm)->Args({1, 512})->Args({1024, 512})->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(swiglu)->Args({1, 1408})->Args({1024, 1408})->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(gated_delta)->Args({1, 48})->Args({256, 1})->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(rope, angles_once, true)
    ->Args({1, 8, 64})
    ->Args({1024, 8, 64})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(rope, new_angles, false)
    ->Args({1, 8, 64})
    ->Args({1024, 8, 64})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace mneme

BENCHMARK_MAIN();

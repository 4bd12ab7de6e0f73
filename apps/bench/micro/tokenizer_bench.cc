// Encoding and decoding speed on one core: tokenizer_bench MODEL TEXT. MODEL as for `mneme tokenize`, TEXT a file of
// plain prose.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "src/formats/checkpoint.h"
#include "src/text/tokenizer/tokenizer.h"

namespace {

using namespace mneme;

std::string read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void count_bytes(benchmark::State& state, std::int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

void add_benchmarks(const TokenizerData& data, const Tokenizer& tokenizer, const std::string& text) {
  benchmark::RegisterBenchmark("make", [&](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::make(data));
  })->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("encode/whole", [&](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(text, {}));
    count_bytes(state, text.size());
  });
  benchmark::RegisterBenchmark("encode/calls_of_500_bytes", [&](benchmark::State& state) {
    for (auto _ : state) {
      for (std::size_t at = 0; at < text.size(); at += 500) {
        benchmark::DoNotOptimize(tokenizer.encode(std::string_view(text).substr(at, 500), {}));
      }
    }
    count_bytes(state, text.size());
  });
  benchmark::RegisterBenchmark("decode", [&](benchmark::State& state) {
    const auto ids = tokenizer.encode(text, {});
    for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids));
    count_bytes(state, text.size());
  });
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer_bench MODEL TEXT [--benchmark_...]\n");
    return 2;
  }
  try {
    const TokenizerData data = Checkpoint::open_tokenizer(argv[1]);
    const auto tokenizer = Tokenizer::make(data);
    const std::string text = read_file(argv[2]);
    if (text.empty() || tokenizer->decode(tokenizer->encode(text, {})) != text) {
      std::fprintf(stderr, "%s: empty, or not what its tokens decode to\n", argv[2]);
      return 2;
    }
    add_benchmarks(data, *tokenizer, text);
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", e.what());
    return 2;
  }
  return 0;
}

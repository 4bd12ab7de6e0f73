#include "apps/bench/bandwidth.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "apps/bench/plain_read.h"
#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/base/rng.h"
#include "src/base/seconds.h"
#include "src/ops/gemm/gemm.h"

namespace mneme {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kPiece = std::size_t{256} << 10;  // bytes handed to a thread at a time
constexpr std::size_t kPieceWords = kPiece / sizeof(std::uint64_t);

}  // namespace

ReadProbe::ReadProbe(std::size_t bytes, ThreadPool& pool)
    : pool_(pool), buffer_(std::max<std::size_t>(bytes / kPiece, 1) * kPiece) {
  const std::int64_t n = buffer_.size() / kPiece;
  pool_.parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end, int) {
    std::uint64_t* words = buffer_.as<std::uint64_t>();
    for (std::size_t i = begin * kPieceWords; i < end * kPieceWords; ++i) words[i] = i;
  });
}

double ReadProbe::measure(int passes) {
  MNEME_CHECK(passes >= 1, "{} passes", passes);
  const std::int64_t n = buffer_.size() / kPiece;
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    std::vector<std::uint64_t> sums(std::size_t{8} * pool_.size());  // a cache line each
    const Clock::time_point start = Clock::now();
    pool_.parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
      const std::uint64_t* words = buffer_.as<std::uint64_t>() + begin * kPieceWords;
      sums[worker * 8] += sum_words(words, (end - begin) * kPieceWords);
    });
    best = std::max(best, ratio(buffer_.size(), seconds_since(start)));
    std::uint64_t sum = 0;
    for (const std::uint64_t s : sums) sum += s;
    // Every word was read, once: the sum of 0 .. n-1, in arithmetic modulo 2^64.
    const std::uint64_t n_words = buffer_.size() / sizeof(std::uint64_t);
    MNEME_CHECK(sum == n_words / 2 * (n_words - 1), "the read probe summed to {}", sum);
  }
  return best;
}

std::size_t memory_probe_bytes(std::int64_t l3_bytes, std::int64_t memory_bytes) {
  const std::int64_t wanted = std::clamp<std::int64_t>(16 * l3_bytes, std::int64_t{512} << 20, std::int64_t{2} << 30);
  return memory_bytes > 0 ? std::min(wanted, memory_bytes / 8) : wanted;
}

std::size_t l3_probe_bytes(std::int64_t l3_bytes) {
  return l3_bytes / 2;
}

double gemm_rate(DType weights, std::int64_t rows, std::int64_t width, int passes, const CpuContext& context) {
  MNEME_CHECK(passes >= 1 && rows >= 1 && width >= 1, "{} passes of {} x {}", passes, rows, width);
  Tensor plain(DType::kF32, {width, width}), w(weights, {width, width}), y(DType::kF32, {rows, width});
  Rng rng(1);
  for (std::int64_t i = 0; i < width * width; ++i) plain.as<float>()[i] = static_cast<float>(rng.uniform() - 0.5);
  quantise_rows(plain, w);
  const WeightMatrix matrix{ConstTensorView(w)};
  Tensor x(gemm_input_dtype(matrix, rows), {rows, width});
  quantise_rows(plain.view().rows(0, std::min(rows, width)), x.view().rows(0, std::min(rows, width)));
  for (std::int64_t r = width; r < rows; ++r)
    std::copy_n(x.view().row(r % width), x.view().stride_bytes(), x.view().row(r));
  double best = 0;
  for (int pass = 0; pass <= passes; ++pass) {  // the first makes room
    const Clock::time_point start = Clock::now();
    gemm_cpu(x, std::array{GemmOutput{.w = &matrix, .y = y}}, context);
    const double seconds = seconds_since(start);
    if (pass > 0) best = std::max(best, ratio(2 * rows * width * width, seconds));
  }
  return best;
}

}  // namespace mneme

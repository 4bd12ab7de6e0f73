// Sums over ranks by kernels that access each other's memory, as processes of one GPU: rows of every width, bit for bit.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <string>

#include "src/base/rng.h"
#include "src/cuda/device.h"
#include "src/cuda/memory.h"
#include "src/model/cuda/ranks/device_collective.h"
#include "tests/parallel/ranks.h"

namespace mneme {
namespace {

using parallel_test::in_children;
using parallel_test::kNoDevice;
using parallel_test::kRight;
using parallel_test::kWrong;
using parallel_test::no_device;
using testing::Each;

// What five sums of `rows` [n, hidden] leave: the residual, then the input of the next GEMM; a row's sum of squares.
struct AddedRows {
  std::vector<float> values;
  std::vector<double> squares;
};
AddedRows added_rows(DeviceCollective& ranks, const std::vector<float>& rows, std::int32_t n, const Stream& stream) {
  const std::size_t elements = rows.size(), width = elements / static_cast<std::size_t>(n);
  const auto hidden = static_cast<std::int32_t>(width);
  const std::vector<float> norm(width, 0.75f);
  const DeviceBuffer values(elements * 4, "rows"), residual(elements * 4, "residual"), next(elements * 2, "next"),
      weights(width * 4, "weights"), sums(elements * 4, "sums");
  copy_bytes(weights.data(), norm.data(), weights.size(), stream);
  set_bytes(residual.data(), 1, residual.size(), stream);
  ranks.begin_step();
  for (int k = 0; k < 5; ++k) {  // both buffers, twice
    copy_bytes(values.data(), rows.data(), values.size(), stream);
    ranks.add_rows(values.as<float>(), n, hidden,
                   {.residual = residual.as<float>(),
                    .norm_weight = weights.as<float>(),
                    .x_next = next.data(),
                    .sums = sums.as<float>()},
                   {.stream = stream.get(), .order = LaunchOrder::kOverlapped});
  }
  const auto parts = static_cast<std::size_t>(ranks.row_parts(n, hidden));
  AddedRows out{.values = std::vector<float>(elements), .squares = std::vector<double>(static_cast<std::size_t>(n))};
  std::vector<float> squares(static_cast<std::size_t>(n) * parts);
  std::vector<std::uint16_t> x(elements);
  copy_bytes(out.values.data(), residual.data(), residual.size(), stream);
  copy_bytes(x.data(), next.data(), next.size(), stream);
  copy_bytes(squares.data(), sums.data(), squares.size() * 4, stream);
  stream.synchronize();
  ranks.end_step();
  out.values.insert(out.values.end(), x.begin(), x.end());
  for (std::size_t i = 0; i < squares.size(); ++i) out.squares[i / parts] += squares[i];
  return out;
}

// Rows of every width: the bits of the sums in the order of the ranks, which the host's collective has.
int compare_sums(Collective& ranks) {
  if (device_count() == 0) return kNoDevice;
  use_device(0);
  const Stream stream = Stream::make();
  constexpr std::size_t kBytes = std::size_t{1} << 18;
  std::string why_not;
  const auto host = host_device_collective(ranks, kBytes);
  const auto peers = peer_device_collective(host_device_collective(ranks, kBytes), {.packets = kBytes}, why_not);
  if (!why_not.empty()) return kWrong;
  int code = kRight;
  for (const std::int32_t hidden : {4, 508, 512, 516, 2560})
    for (const std::int32_t n : {1, 3, 9}) {
      Rng rng(static_cast<std::uint64_t>(hidden) * 100 + static_cast<std::uint64_t>(ranks.rank()));
      std::vector<float> rows(static_cast<std::size_t>(n) * static_cast<std::size_t>(hidden));
      for (float& v : rows) v = static_cast<float>(rng.normal());
      const AddedRows expected = added_rows(*host, rows, n, stream), got = added_rows(*peers, rows, n, stream);
      const bool fits = n * ((hidden + 511) / 512) <= 128 / (ranks.size() - 1);
      bool right = got.values == expected.values && peers->adds_in_one(n, hidden) == fits;
      for (std::size_t r = 0; r < got.squares.size(); ++r)
        right = right && std::abs(got.squares[r] - expected.squares[r]) <= 1e-5 * expected.squares[r];
      if (right) continue;
      fmt::print(stderr, "rank {} of {}: {} rows of {} differ\n", ranks.rank(), ranks.size(), n, hidden);
      code = kWrong;
    }
  return code;
}

TEST(CudaPeerSums, HaveTheBitsOfSumsInOrder) {
  for (const int size : {2, 4}) {
    const std::vector<int> codes = in_children(size, compare_sums);
    if (no_device(codes)) GTEST_SKIP() << "no GPU";
    EXPECT_THAT(codes, Each(kRight)) << size;
  }
}

// Rows that two ranks read from each other: the bits of p0 + p1 + residual, call after call.
TEST(CudaPeerSums, OfRowsReadFromTheOtherRank) {
  const std::vector<int> codes = in_children(2, [](Collective& ranks) {
    if (device_count() == 0) return kNoDevice;
    use_device(0);
    const Stream stream = Stream::make();
    constexpr std::size_t kMost = 700000;
    std::string why_not;
    const auto peers =
        peer_device_collective(host_device_collective(ranks, kMost * 4), {.packets = 1, .rows = kMost * 4}, why_not);
    if (!why_not.empty()) return kWrong;
    const auto value = [](int rank, std::size_t i, int call) {
      return static_cast<float>((i * 7 + static_cast<std::size_t>(call)) % 1000) * 0.37f + static_cast<float>(rank);
    };
    int code = kRight;
    for (const std::size_t n : {std::size_t{4}, std::size_t{2052}, std::size_t{65536}, kMost}) {
      const DeviceBuffer residual(n * 4, "residual");
      set_bytes(residual.data(), 0, residual.size(), stream);
      std::vector<float> mine(n), expected(n), got(n);
      peers->begin_step();
      for (int call = 0; call < 4; ++call) {
        for (std::size_t i = 0; i < n; ++i) {
          mine[i] = value(ranks.rank(), i, call);
          expected[i] += value(0, i, call) + value(1, i, call);
        }
        copy_bytes(peers->own_rows(), mine.data(), n * 4, stream);
        stream.synchronize();  // `mine` is written again
        peers->add_rows(peers->own_rows(), 1, static_cast<std::int32_t>(n), {.residual = residual.as<float>()},
                        {.stream = stream.get(), .order = LaunchOrder::kOverlapped});
      }
      copy_bytes(got.data(), residual.data(), n * 4, stream);
      stream.synchronize();
      peers->end_step();
      if (got != expected || !peers->adds_in_one(1, static_cast<std::int32_t>(n))) code = kWrong;
    }
    return code;
  });
  if (no_device(codes)) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(codes, Each(kRight));
}

}  // namespace
}  // namespace mneme

#include "apps/bench/machine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "apps/bench/bandwidth.h"
#include "apps/bench/timed/samples.h"

namespace mneme {
namespace {

TEST(Machine, ReadsSizesAsSysfsWritesThem) {
  EXPECT_EQ(parse_size("32768K"), 32 << 20);
  EXPECT_EQ(parse_size("1M"), 1 << 20);
  EXPECT_EQ(parse_size("2G"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_size("512"), 512);
  for (const char* bad : {"", "K", "12T", "12KB", "-1K", "one"}) EXPECT_EQ(parse_size(bad), 0) << bad;
}

TEST(Machine, KnowsThisOne) {
  const Machine m = read_machine();
  EXPECT_GE(m.cpus_allowed, 1);
  EXPECT_LE(m.cpus_allowed, m.cpus_online);
  EXPECT_GE(m.cores, 1);
  EXPECT_LE(m.cores, m.cpus_allowed);
  EXPECT_GT(m.memory_bytes, 0);
  EXPECT_LE(m.memory_limit, m.memory_bytes);
}

TEST(ReadProbe, ReadsAllOfItsBuffer) {  // measure() checks the sum of what was read
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    ReadProbe probe((std::size_t{3} << 20) + 5, pool);
    EXPECT_EQ(probe.bytes(), std::size_t{3} << 20);
    EXPECT_GT(probe.measure(2), 1e6);
  }
}

TEST(ReadProbe, IsLargerThanTheCachesAndSmallerThanTheMemory) {
  EXPECT_EQ(memory_probe_bytes(0, 0), std::size_t{512} << 20);
  EXPECT_EQ(memory_probe_bytes(64 << 20, std::int64_t{64} << 30), std::size_t{1} << 30);
  EXPECT_EQ(memory_probe_bytes(std::int64_t{4} << 30, std::int64_t{64} << 30), std::size_t{2} << 30);
  EXPECT_EQ(memory_probe_bytes(64 << 20, std::int64_t{1} << 30), std::size_t{128} << 20);
}

TEST(GemmRate, IsMeasuredForMoreAndFewerRowsThanTheMatrixHas) {
  ThreadPool pool(2);
  for (const std::int64_t rows : {1, 40, 100})
    for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kF32})
      EXPECT_GT(gemm_rate(type, rows, 64, 1, {.pool = &pool}), 1e3);
}

TEST(Quantiles, LieOnTheLineBetweenSamples) {
  const Quantiles q = quantiles_of({5, 1, 2, 4, 3});
  EXPECT_DOUBLE_EQ(q.median, 3);
  EXPECT_DOUBLE_EQ(q.p10, 1.4);
  EXPECT_DOUBLE_EQ(q.p99, 4.96);
  EXPECT_DOUBLE_EQ(q.mean, 3);
  EXPECT_DOUBLE_EQ(q.least, 1);
  EXPECT_DOUBLE_EQ(q.deviation, std::sqrt(2.5));
  EXPECT_DOUBLE_EQ(quantiles_of({7}).p99, 7);
  EXPECT_DOUBLE_EQ(quantiles_of({7}).deviation, 0);
  EXPECT_DOUBLE_EQ(quantiles_of({}).median, 0);
}

}  // namespace
}  // namespace mneme

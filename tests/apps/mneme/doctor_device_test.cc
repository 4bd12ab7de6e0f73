// What `mneme doctor` makes of a model on a GPU: arithmetic, no GPU.
#include "apps/mneme/doctor/doctor_device.h"

#include <gtest/gtest.h>

namespace mneme::cli {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

DoctorDevice device_of(std::int64_t gib) {
  return {.number = 0,
          .info = {.name = "a card", .memory_bytes = static_cast<std::size_t>(gib * kGiB)},
          .rates = {.read = 4.6e12, .host_to_device = 55e9, .device_to_host = 55e9}};
}

TEST(DoctorDevice, SaysWhatFitsWhere) {
  const BenchShape shape = read_bench_shape({.model = {}, .shape = "llama-3.1-8b", .weights = "bf16"});
  // 131,072 bytes a token: 16 GiB of keys and values beside 15 of weights.
  const DeviceOutlooks small = device_outlooks(device_of(24), shape, 131072, 1, 64 * kGiB);
  EXPECT_FALSE(small.device.fits);
  EXPECT_TRUE(small.host.fits);
  EXPECT_TRUE(small.selected.fits);
  EXPECT_EQ(small.device.host_needed, 0);
  EXPECT_NEAR(static_cast<double>(small.host.host_needed) / kGiB, 16.0, 0.01);
  EXPECT_GT(small.device.device_needed, 31 * kGiB);
  EXPECT_LT(small.host.device_needed, 18 * kGiB);
  const DeviceOutlooks large = device_outlooks(device_of(141), shape, 131072, 1, 64 * kGiB);
  EXPECT_TRUE(large.device.fits);
  EXPECT_FALSE(device_outlooks(device_of(141), shape, 131072, 1, 16 * kGiB).host.fits);
}

TEST(DoctorDevice, BoundsAStepByWhatItReads) {
  const BenchShape shape = read_bench_shape({.model = {}, .shape = "llama-3.1-8b", .weights = "bf16"});
  const DeviceOutlooks o = device_outlooks(device_of(141), shape, 131072, 1, 64 * kGiB);
  EXPECT_NEAR(1e3 / o.device.tokens_per_second, 7.0, 0.1);  // docs/design/cuda.md's floor
  EXPECT_NEAR(1e3 / o.host.tokens_per_second, 316, 2);      // 17.2 GB through the link
  EXPECT_NEAR(1e3 / o.selected.tokens_per_second, 3.5, 0.1);
  const DeviceOutlooks four = device_outlooks(device_of(141), shape, 32768, 4, 64 * kGiB);
  EXPECT_GT(four.device.tokens_per_second, 2 * o.device.tokens_per_second);
}

TEST(DoctorDevice, NamesTheReasonWhereThereIsNone) {
  EXPECT_NE(devices_text({}).find("none: "), std::string::npos);
  EXPECT_NE(devices_text({device_of(24)}).find("24.00 GiB"), std::string::npos);
  EXPECT_TRUE(devices_json({}).empty());
}

}  // namespace
}  // namespace mneme::cli

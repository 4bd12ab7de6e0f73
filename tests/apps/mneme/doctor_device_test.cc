// What `mneme doctor` makes of a model on a GPU: arithmetic, no GPU.
#include "apps/mneme/doctor/doctor_device.h"

#include <gtest/gtest.h>

#include "src/kv/page_pool.h"

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
  const DeviceOutlooks eight = device_outlooks(device_of(141), shape, 131072, 1, 64 * kGiB, DType::kInt8);
  EXPECT_NEAR(static_cast<double>(eight.host.host_needed) / static_cast<double>(o.host.host_needed), 264.0 / 512, 1e-6);
  EXPECT_LT(eight.host.device_needed, o.host.device_needed + kGiB);
  EXPECT_NEAR(1e3 / eight.device.tokens_per_second, 5.2, 0.1);
  const DeviceOutlooks four = device_outlooks(device_of(141), shape, 32768, 4, 64 * kGiB);
  EXPECT_GT(four.device.tokens_per_second, 2 * o.device.tokens_per_second);
}

// Of gpt-oss-20b's 24 layers, 2 KiB a token each, twelve attend 128 tokens, and store those of a step besides.
TEST(DoctorDevice, CountsWindows) {
  const BenchShape shape = read_bench_shape({.model = {}, .shape = "gpt-oss-20b", .weights = "q4_0"});
  const std::int64_t context = 131072, token = 2048;
  const DeviceOutlooks o = device_outlooks(device_of(141), shape, context, 1, 64 * kGiB);
  const std::int64_t whole = 12 * context * token, windows = 12 * (128 + 64 + 1024 + kPageTokens) * token;
  EXPECT_EQ(o.host.host_needed, whole + windows + 24 * kPageTokens * token);
  EXPECT_LT(o.selected.device_needed, o.device.device_needed);
  EXPECT_NEAR(55e9 / o.host.tokens_per_second, static_cast<double>(whole + 12 * 128 * token), 0.05 * 3.3e9);
  // A context that a window holds is stored by all layers.
  const DeviceOutlooks small = device_outlooks(device_of(141), shape, 64, 1, 64 * kGiB);
  EXPECT_EQ(small.host.host_needed, 24 * (64 + kPageTokens) * token);
}

TEST(DoctorDevice, SplitsWeightsThatDoNotFit) {
  const BenchShape dense = read_bench_shape({.model = {}, .shape = "llama-3.1-8b", .weights = "bf16"});
  const DeviceOutlooks all = device_outlooks(device_of(24), dense, 8192, 1, 64 * kGiB);
  EXPECT_EQ(all.split.placement.layers, 32);
  EXPECT_EQ(all.split.outlook.device_needed, all.selected.device_needed);
  EXPECT_NE(device_outlook_text(device_of(24), all).find("all 32 layers on the device"), std::string::npos);
  const DeviceOutlooks few = device_outlooks(device_of(10), dense, 8192, 1, 64 * kGiB);
  EXPECT_FALSE(few.selected.fits);
  EXPECT_TRUE(few.split.outlook.fits);
  EXPECT_GT(few.split.placement.layers, 5);
  EXPECT_LT(few.split.placement.layers, 20);
  // What is not on the device crosses the link in every step.
  const double host = static_cast<double>(few.split.outlook.host_needed - few.selected.host_needed);
  EXPECT_NEAR(1 / few.split.outlook.tokens_per_second, host / 55e9, 0.1 * host / 55e9);

  const BenchShape mixture = read_bench_shape({.model = {}, .shape = "qwen3-30b-a3b", .weights = "q4_0"});
  const DeviceOutlooks experts = device_outlooks(device_of(12), mixture, 8192, 1, 64 * kGiB);
  EXPECT_EQ(experts.split.placement.layers, 48);
  EXPECT_GT(experts.split.placement.expert_layers, 0);
  EXPECT_LT(experts.split.placement.expert_layers, 48);
  EXPECT_NE(device_outlook_text(device_of(12), experts).find("of 48 layers in host memory"), std::string::npos);
}

TEST(DoctorDevice, NamesTheReasonWhereThereIsNone) {
  EXPECT_NE(devices_text({}).find("none: "), std::string::npos);
  EXPECT_NE(devices_text({device_of(24)}).find("24.00 GiB"), std::string::npos);
  EXPECT_TRUE(devices_json({}).empty());
}

}  // namespace
}  // namespace mneme::cli

// The options that `mneme doctor` recommends: arithmetic, no GPU.
#include "apps/mneme/doctor/recommend.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mneme::cli {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kOneGib = std::int64_t{1} << 30;

DoctorDevice card_of(std::int64_t gib) {
  return {.number = 0,
          .info = {.name = "a card", .code_version = 90, .memory_bytes = static_cast<std::size_t>(gib * kOneGib)},
          .rates = {.read = 4.6e12, .host_to_device = 55e9, .device_to_host = 55e9}};
}
BenchShape llama() {
  return read_bench_shape({.model = {}, .shape = "llama-3.1-8b", .weights = "bf16"});
}
Recommendation on_card(std::int64_t gib, std::int64_t sequences, std::int64_t host_gib = 128) {
  return recommend_on_device(card_of(gib), llama(), {32768, sequences, host_gib * kOneGib});
}

TEST(Recommend, KeepsSixteenBitsOnTheDeviceWhereTheyFit) {
  // 4 GiB a sequence beside 15 of weights.
  const Recommendation r = on_card(80, 14);
  for (const char* option : {"--device cuda", "--kv-store device", "--kv full", "--kv-cache-dtype bf16",
                             "--max-num-seqs 14", "-c 32768", "--kv-offloading-size 57"})
    EXPECT_THAT(r.options, Contains(option));
  EXPECT_GE(r.most_sequences, 14);
  EXPECT_LE(r.most_sequences, 16);
  EXPECT_THAT(r.faster, HasSubstr("--kv mneme"));
  EXPECT_GT(r.tokens_per_second, 500);
}

TEST(Recommend, HalvesKeysAndValuesBeforeItLeavesTheDevice) {
  const Recommendation r = on_card(80, 27);
  EXPECT_THAT(r.options, Contains("--kv-store device"));
  EXPECT_THAT(r.options, Contains("--kv-cache-dtype int8"));
  EXPECT_THAT(r.options, Contains("--kv full"));
}

TEST(Recommend, LeavesHostMemoryUnderTheDevices) {
  const auto tier = [](const Recommendation& r) {
    for (const std::string& o : r.options)
      if (o.starts_with("--kv-host-gib ")) return std::stoi(o.substr(14));
    return 0;
  };
  EXPECT_EQ(tier(on_card(80, 2)), 32) << "four times the 8 GiB on the device";
  const int half = tier(on_card(80, 14));
  EXPECT_LT(half, 64) << "half of the host's memory";
  EXPECT_GT(half, 56);
  EXPECT_EQ(tier(on_card(80, 14, 1)), 0);
  EXPECT_EQ(tier(on_card(80, 40)), 0) << "pages lie in host memory already";
}

TEST(Recommend, TakesTheHostAndAMethodForMore) {
  const Recommendation r = on_card(80, 40);
  EXPECT_THAT(r.options, Contains("--kv-store host"));
  EXPECT_THAT(r.options, Contains("--kv mneme"));
  EXPECT_THAT(r.options, Contains("--kv-cache-dtype int8"));
  EXPECT_EQ(r.faster, "");
}

TEST(Recommend, SaysHowManyFitWhereNotAllDo) {
  const Recommendation r = on_card(80, 1000);
  EXPECT_THAT(r.reason, HasSubstr(fmt::format("1000 sequences do not fit, {} do", r.most_sequences)));
  EXPECT_THAT(r.options, Contains(fmt::format("--max-num-seqs {}", r.most_sequences)));
  EXPECT_GT(r.most_sequences, 40);
  EXPECT_EQ(on_card(80, r.most_sequences).most_sequences, r.most_sequences);
}

TEST(Recommend, PlacesLayersInTheHostsMemoryWhereWeightsDoNotFit) {
  const Recommendation r = on_card(10, 1);
  EXPECT_THAT(r.options, Contains("--gpu-layers auto"));
  EXPECT_THAT(r.options, Contains("--kv-store host"));
  EXPECT_GT(r.tokens_per_second, 0);
  const Recommendation none = on_card(2, 1);
  EXPECT_TRUE(none.options.empty());
  EXPECT_THAT(recommendation_text(none), HasSubstr("not one sequence fits"));
}

TEST(Recommend, OnTheCpuUsesMemoryThenAFile) {
  const auto on_cpu = [](std::int64_t gib) { return recommend_on_cpu(llama(), {32768, 4, gib * kOneGib}, 30e9); };
  const Recommendation all = on_cpu(64), half = on_cpu(26), file = on_cpu(20), none = on_cpu(8);
  EXPECT_THAT(all.options, Contains("--kv-cache-dtype bf16"));
  EXPECT_THAT(half.options, Contains("--kv-cache-dtype int8"));
  EXPECT_THAT(half.options, Contains("--kv full"));
  EXPECT_THAT(file.options, Contains("--kv-spill FOLDER"));
  EXPECT_THAT(file.options, Contains("--kv mneme"));
  EXPECT_TRUE(none.options.empty());
  EXPECT_THAT(recommendation_json(file).dump(), HasSubstr("--kv-spill-gib"));
}

// It recommended --kv full --kv-cache-dtype int8 at "about 0 tokens/s" on a machine with 21.9 GiB free, for 23.5.
TEST(Recommend, OnTheCpuNothingThatDoesNotFitWithAMargin) {
  const auto on_cpu = [](std::int64_t mebibytes) {
    return recommend_on_cpu(llama(), {131072, 1, mebibytes << 20}, 10e9);
  };
  const Recommendation less = on_cpu(22426);  // 21.9 GiB
  EXPECT_THAT(less.options, Contains("--kv-spill FOLDER"));
  EXPECT_THAT(less.options, Contains("--kv mneme"));
  EXPECT_THAT(less.faster, HasSubstr("-c 8")) << "80 thousand and some tokens fit";
  EXPECT_THAT(on_cpu(24064).options, Contains("--kv-spill FOLDER")) << "23.5 GiB: it fits, and nothing else does";
  EXPECT_THAT(on_cpu(26 << 10).options, Not(Contains("--kv-spill FOLDER")));
}

TEST(Recommend, OnTheCpuAMethodWhereFullAttentionTakesSecondsForAToken) {
  const auto on_cpu = [](double rate) { return recommend_on_cpu(llama(), {131072, 1, 64 * kOneGib}, rate); };
  const Recommendation slow = on_cpu(10e9), quick = on_cpu(100e9);
  EXPECT_THAT(slow.options, Contains("--kv mneme"));
  EXPECT_THAT(slow.reason, HasSubstr("full attention would give 0.3"));
  EXPECT_GT(slow.tokens_per_second, 0.45);
  EXPECT_THAT(recommendation_text(slow), Not(HasSubstr("about 0 tokens/s")));
  EXPECT_THAT(quick.options, Contains("--kv full"));
  EXPECT_THAT(quick.faster, HasSubstr("--kv mneme"));
}

TEST(Recommend, APrefillOfHoursIsSaid) {
  EXPECT_EQ(prefill_text(2000, 131072), "2000 tokens/s over the whole context");
  EXPECT_THAT(prefill_text(2, 131072), testing::AllOf(HasSubstr("2 tokens/s"), HasSubstr("18 hours"), HasSubstr("-c")));
  EXPECT_EQ(rate_text(0.042), "0.042");
  EXPECT_EQ(rate_text(57.4), "57");
}

// Twelve of gpt-oss-20b's 24 layers keep a window of 128 tokens: 131,072 tokens take 3.1 GiB in place of 6.
TEST(Recommend, CountsWindowsOnceAndWholeLayersInFull) {
  const BenchShape shape = read_bench_shape({.model = {}, .shape = "gpt-oss-20b", .weights = "q4_0"});
  const Recommendation r = recommend_on_device(card_of(80), shape, {131072, 16, 128 * kOneGib});
  EXPECT_THAT(r.options, Contains("--kv-cache-dtype bf16"));
  EXPECT_THAT(r.options, Contains("--kv-store device"));
  EXPECT_THAT(r.options, Contains("--kv-offloading-size 49"));
  const Recommendation cpu = recommend_on_cpu(shape, {131072, 4, 32 * kOneGib}, 30e9);
  EXPECT_THAT(cpu.options, Contains("--kv-offloading-size 13"));
  EXPECT_THAT(cpu.options, Contains("--kv-cache-dtype bf16"));
}

TEST(Recommend, OneSequenceNeedsNoSize) {
  const Recommendation r = on_card(80, 1);
  EXPECT_THAT(r.options, Not(Contains(HasSubstr("--kv-offloading-size"))));
}

}  // namespace
}  // namespace mneme::cli

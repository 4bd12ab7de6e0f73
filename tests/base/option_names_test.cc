// Names of option values, as the command line, requests and reports spell them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mneme/options.h"
#include "tests/error_message.h"

namespace mneme {
namespace {

template <typename E>
void expect_round_trip(E (*parse)(std::string_view), std::initializer_list<std::pair<std::string_view, E>> names) {
  for (const auto& [name, value] : names) {
    EXPECT_EQ(parse(name), value) << name;
    EXPECT_EQ(name_of(value), name);
  }
}

template <typename F>
std::string refusal(const F& f) {
  return error_message(ErrorKind::kOption, f);
}

TEST(OptionNames, AreReadAsTheyArePrinted) {
  expect_round_trip(parse_device, {{"cpu", Device::kCpu}, {"cuda", Device::kCuda}});
  expect_round_trip(parse_kv_residency,
                    {{"auto", KvResidency::kAuto}, {"device", KvResidency::kDevice}, {"host", KvResidency::kHost}});
  expect_round_trip(
      parse_kv_dtype,
      {{"bf16", KvDtype::kBf16}, {"f16", KvDtype::kF16}, {"int8", KvDtype::kInt8}, {"fp8", KvDtype::kFp8}});
  expect_round_trip(
      parse_numa_policy,
      {{"none", NumaPolicy::kNone}, {"distribute", NumaPolicy::kDistribute}, {"isolate", NumaPolicy::kIsolate}});
  expect_round_trip(parse_kv_admission, {{"reserve", KvAdmission::kReserve}, {"forecast", KvAdmission::kForecast}});
}

TEST(OptionNames, AnotherNameIsRefusedWithTheKnownOnes) {
  EXPECT_EQ(refusal([] { parse_device("gpu"); }), "device: expected cpu or cuda, found \"gpu\"");
  EXPECT_EQ(refusal([] { parse_kv_residency(""); }), "kv_store: expected auto or device or host, found \"\"");
  EXPECT_EQ(refusal([] { parse_kv_dtype("f32"); }),
            "kv_cache_dtype: expected bf16 or f16 or int8 or fp8, found \"f32\"");
  EXPECT_EQ(refusal([] { parse_numa_policy("None"); }), "numa: expected none or distribute or isolate, found \"None\"");
}

TEST(Speculation, IsReadAsItIsPrinted) {
  const auto ngram = [](int k, int min) {
    return SpeculationOptions{.method = SpeculationOptions::Method::kNgram, .drafts = k, .min_match = min};
  };
  EXPECT_EQ(parse_speculation("off"), SpeculationOptions{});
  EXPECT_EQ(parse_speculation("ngram"), ngram(7, 4));
  EXPECT_EQ(parse_speculation("ngram:k=15"), ngram(15, 4));
  EXPECT_EQ(parse_speculation("ngram:min=32,k=63"), ngram(63, 32));
  for (const char* text : {"off", "ngram:k=7,min=4", "ngram:k=1,min=1"})
    EXPECT_EQ(speculation_text(parse_speculation(text)), text);
  for (const auto& [text, words] : {std::pair{"", "expected off, ngram, or ngram:k=7,min=4, found \"\""},
                                    {"mtp:k=3", "found \"mtp:k=3\""},
                                    {"ngram:", "expected the settings k and min, found \"\""},
                                    {"ngram:n=3", "found \"n\""},
                                    {"ngram:k", "k: expected a number from 1 to 63, found \"\""},
                                    {"ngram:k=0", "found \"0\""},
                                    {"ngram:k=64", "found \"64\""},
                                    {"ngram:min=33", "from 1 to 32, found \"33\""},
                                    {"ngram:k=7,", "found \"\""},
                                    {"ngram:k=7x", "found \"7x\""}})
    EXPECT_THAT(refusal([&] { parse_speculation(text); }), ::testing::HasSubstr(words)) << text;
}

TEST(GpuLayers, AreAutoOrANumber) {
  EXPECT_EQ(parse_gpu_layers("auto"), kAutoGpuLayers);
  EXPECT_EQ(parse_gpu_layers("0"), 0);
  EXPECT_EQ(parse_gpu_layers("48"), 48);
  for (const char* text : {"", "all", "-1", "1.5", "4 ", "99999999999"})
    EXPECT_THAT(refusal([&] { parse_gpu_layers(text); }),
                ::testing::HasSubstr("gpu_layers: expected auto or a number"));
}

TEST(DenseLayers, AreNoneOrAList) {
  using Layers = std::vector<std::int32_t>;
  EXPECT_EQ(parse_dense_layers(""), std::nullopt);
  EXPECT_EQ(parse_dense_layers("none"), Layers{});
  EXPECT_EQ(parse_dense_layers("0"), Layers{0});
  EXPECT_EQ(parse_dense_layers("0,1,31"), (Layers{0, 1, 31}));
  for (const char* text : {"", "none", "7", "2,0,11"}) EXPECT_EQ(dense_layers_text(parse_dense_layers(text)), text);
}

TEST(DenseLayers, AnythingElseIsRefused) {
  for (const char* text : {"all", "0,x", "0,", ",0", "-1", "0 1", "1.5", "99999999999", "0,,1", "none,0"})
    EXPECT_THAT(refusal([&] { parse_dense_layers(text); }), ::testing::HasSubstr(text));
}

}  // namespace
}  // namespace mneme

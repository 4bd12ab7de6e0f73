// mneme bench and mneme doctor, as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/apps/cut_texts.h"
#include "tests/apps/mneme/program.h"

namespace mneme::cli_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(Bench, TellsTokensBytesFloorAndTimeByOperation) {
  const TempFolder folder;
  const std::string trace = (folder.path() / "trace.json").string();
  const Outcome r = mneme({"bench", "decode", "--shape", "tiny-16l", "--weights", "q8_0", "--depth", "0,96", "--batch",
                           "1,3", "-n", "3", "--json", "--trace", trace});
  ASSERT_EQ(r.code, 0) << r.err;
  const json report = json::parse(r.out);
  EXPECT_EQ(report.at("command")[0], "mneme");
  EXPECT_FALSE(report.at("commit").get<std::string>().empty());
  EXPECT_GE(report.at("machine").at("cpus_allowed").get<int>(), 1);
  EXPECT_EQ(report.at("weights"), "q8_0");
  ASSERT_EQ(report.at("results").size(), 4u);
  for (const json& row : report.at("results")) {
    EXPECT_GT(row.at("tokens_per_second").get<double>(), 0);
    EXPECT_GT(row.at("bandwidth").get<double>(), 0);
    EXPECT_NEAR(row.at("floor_seconds").get<double>(),
                row.at("bytes").at("total").get<double>() / row.at("bandwidth").get<double>(), 1e-12);
    EXPECT_EQ(row.at("operation_seconds").size(), 5u);
  }
  EXPECT_EQ(report.at("results")[3].at("test"), "tg3 @ d96");
  EXPECT_EQ(report.at("results")[3].at("batch"), 3);
  EXPECT_GE(json::parse(read_file(trace)).at("traceEvents").size(), 4u * 3 * (1 + 16 * 7));
}

TEST(Bench, ComparesMethodsInOneRun) {
  const Outcome r = mneme({"bench", "decode", "--shape", "tiny-16l", "--depth", "700", "-n", "2", "--kv-method",
                           "full,window,quest", "--kv-budget", "256", "--dense-layers", "none", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const json rows = json::parse(r.out).at("results");
  ASSERT_EQ(rows.size(), 3u);
  const auto read = [&](std::size_t i) { return rows[i].at("bytes").at("kv_read").get<double>(); };
  EXPECT_LT(read(1), read(0));
  EXPECT_LT(read(2), read(0));
  EXPECT_EQ(rows[0].at("bytes").at("index_read"), 0.0);
  EXPECT_GT(rows[2].at("bytes").at("index_read").get<double>(), 0);
  EXPECT_EQ(rows[2].at("budget"), 256);
}

TEST(Bench, DrawsAStepByOperation) {
  const TempFolder folder;
  const std::string svg = (folder.path() / "step.svg").string();
  const Outcome r = mneme({"bench", "decode", "--shape", "tiny-16l", "--depth", "300", "-n", "1", "--kv-method",
                           "full,quest", "--kv-budget", "128", "--svg", svg});
  ASSERT_EQ(r.code, 0) << r.err;
  const std::string picture = read_file(svg);
  EXPECT_THAT(picture, testing::StartsWith("<svg"));
  EXPECT_THAT(eval::cut_texts(picture), testing::IsEmpty());
  EXPECT_THAT(picture, testing::AllOf(HasSubstr("full, tg1 @ d300"), HasSubstr("quest, tg1 @ d300"),
                                      HasSubstr("<title>attention: ")));
  EXPECT_NE(mneme({"bench", "decode", "--shape", "tiny-16l", "--phases"}).code, 0) << "phases are of a device's step";
}

TEST(Bench, DefaultsOfEveryMethodFitABudgetOf512) {
  const Outcome r = mneme({"bench", "decode", "--shape", "tiny-16l", "--depth", "700", "-n", "1", "--kv-method",
                           "full,freekv", "--kv-budget", "512"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.err, HasSubstr("freekv: the budget of 512 tokens shrinks"));
}

TEST(Bench, ReadsPromptsOfTheShippedModel) {
  const Outcome r = mneme({"bench", "prefill", "-m", MNEME_MODEL_FILE, "--depth", "64,130", "-b", "64"});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* word : {"needle-27m-q8_0", "pp64", "pp130", "tokens/s", "attention", "Gop/s"})
    EXPECT_THAT(r.out, HasSubstr(word));
}

TEST(Bench, RefusesWhatItCannotMeasure) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"bench"}, "subcommand"},
      {{"bench", "decode"}, "--shape"},
      {{"bench", "decode", "--shape", "tiny-16l", "-m", MNEME_MODEL_FILE}, "one of the two"},
      {{"bench", "decode", "--shape", "gpt-5"}, "gpt-5"},
      {{"bench", "decode", "--shape", "tiny-16l", "--depth", "-1"}, "integer"},
      {{"bench", "decode", "--shape", "tiny-16l", "--weights", "q3"}, "q8_0"},
      {{"bench", "decode", "--shape", "tiny-16l", "--kv-method", "magic"}, "magic"},
      {{"bench", "decode", "--shape", "tiny-16l", "--kv-method", "quest", "--dense-layers", "0,x"}, "--dense-layers"},
      {{"bench", "decode", "--shape", "tiny-16l", "--kv-method", "quest", "--kv", "index=wings"}, "wings"},
      {{"bench", "prefill", "--shape", "tiny-16l", "--depth", "0"}, "integer"},
      {{"bench", "ablate"}, "--shape"},
      {{"bench", "ablate", "--shape", "tiny-16l", "--kv-sink", "5"}, "sink must be a multiple"},
      {{"bench", "ablate", "--shape", "tiny-16l", "--correction", "2"}, "--correction"},
      {{"doctor", "-m", "/nowhere/model.gguf"}, "/nowhere/model.gguf"}};
  for (const auto& [arguments, word] : cases) {
    const Outcome r = mneme(arguments);
    EXPECT_EQ(r.code, 2) << testing::PrintToString(arguments);
    EXPECT_THAT(r.err, HasSubstr(word)) << testing::PrintToString(arguments);
    EXPECT_EQ(r.out, "");
  }
}

TEST(Doctor, TellsWhatAModelWouldNeed) {
  const Outcome r =
      mneme({"doctor", "--shape", "llama-3.1-8b", "--weights", "q8_0", "-c", "32768", "--batch", "2", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const json report = json::parse(r.out);
  EXPECT_GT(report.at("measured").at("read_all_threads").get<double>(), 0);
  EXPECT_TRUE(report.at("devices").is_array());
  const json model = report.at("model");
  EXPECT_EQ(model.at("kv_bytes_per_token"), 131072);
  EXPECT_EQ(model.at("kv_bytes"), std::int64_t{2} * (32768 + 32) * 131072);
  EXPECT_NEAR(model.at("weight_bytes").get<double>(), 8030261248.0 * 34 / 32, 1e6);
  EXPECT_EQ(model.at("fits").get<bool>(), model.at("needed_bytes").get<std::int64_t>() <=
                                              report.at("machine").at("memory_limit").get<std::int64_t>());
  EXPECT_LT(model.at("decode_tokens_per_second_when_full").get<double>(),
            model.at("decode_tokens_per_second_at_start").get<double>());
  EXPECT_FALSE(model.at("recommended").at("reason").get<std::string>().empty());
}

TEST(Doctor, SpeaksToPeople) {
  const Outcome r = mneme({"doctor", "-m", MNEME_MODEL_FILE});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* word :
       {"CPU", "cores", "GPU", "instruction sets", "GB/s", "KV cache", "fits", "decode, at most", "recommended"})
    EXPECT_THAT(r.out, HasSubstr(word));
}

}  // namespace
}  // namespace mneme::cli_test

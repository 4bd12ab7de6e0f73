// Runs on disk: cut anywhere, sharded, merged.
#include "apps/eval/runs/run_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "apps/eval/runs/long_table.h"
#include "apps/eval/runs/suite_table.h"
#include "mneme/error.h"
#include "tests/apps/eval/suites/data_folder.h"

namespace mneme::eval {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kContexts = 20;

nlohmann::json settings() {
  return {
      {"suite", "s"}, {"seed", 1}, {"n_contexts", kContexts}, {"methods", {{{"label", "full"}}, {{"label", "quest"}}}}};
}

// What a context answers is a function of the context and the method, as with the engine.
SuiteRecord record_of(std::int64_t context, const std::string& method) {
  SuiteRecord r{.context = context,
                .task = context % 3 == 0 ? "a" : "b",
                .context_id = std::to_string(context),
                .method = method};
  r.answers.push_back({.id = r.context_id,
                       .groups = {context % 2 == 0 ? "even" : "odd"},
                       .texts = {"answer \"" + r.context_id + "\"\n\t\u00e9"},
                       .scores = {double((context * 7 + (method == "full" ? 3 : 0)) % 5) / 4},
                       .tokens = context});
  r.cost.steps = context + 1;
  r.cost.kv_bytes = 1024 * context;
  r.answers.back().lines = {1, 0.25};
  r.along.push_back({.tokens = 4, .checks = 2, .corrections = 1});
  r.layers = {{.attended = context, .attended_heads = 1}};
  return r;
}

void complete(RunFile& run, const Shard& shard, std::int64_t most = 1000) {
  for (std::int64_t u = 0; u < kContexts; ++u)
    for (const char* method : {"full", "quest"})
      if (shard.has(u) && !run.has(u, method) && most-- > 0) run.append(record_of(u, method));
}

std::string table_of(std::vector<SuiteRecord> records) {
  sort_records(records, settings());
  return suite_markdown(summarise_suite(records), TableLayout::kMethodRows) + along_markdown(records) +
         lines_markdown(records) + suite_json(summarise_suite(records)).dump();
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(RunFile, GoesOnWhereverItWasCut) {
  const DataFolder folder;
  const std::string whole_path = folder.path() + "/whole.jsonl";
  RunFile whole(whole_path, settings(), {});
  complete(whole, {});
  const std::string text = text_of(whole_path), wanted = table_of(whole.records());
  const std::size_t head = text.find('\n') + 1;
  for (std::size_t cut = head; cut < text.size(); cut += 97) {
    const std::string path = folder.write("cut.jsonl", text.substr(0, cut));
    RunFile again(path, settings(), {});
    EXPECT_LE(again.records().size(), whole.records().size());
    complete(again, {});
    ASSERT_EQ(table_of(again.records()), wanted) << cut;
    ASSERT_EQ(text_of(path), text) << cut;
  }
}

TEST(RunFile, FourShardsMergeIntoTheWholeTable) {
  const DataFolder folder;
  RunFile whole("", settings(), {});
  complete(whole, {});
  std::vector<std::string> paths;
  for (std::int64_t k : {3, 1, 4, 2}) {
    paths.push_back(folder.path() + "/" + std::to_string(k));
    RunFile part(paths.back(), settings(), {k, 4});
    complete(part, {k, 4});
  }
  const MergedRun merged = merge_runs(paths);
  EXPECT_EQ(merged.missing, 0);
  EXPECT_EQ(table_of(merged.records), table_of(whole.records()));
  paths.pop_back();
  EXPECT_EQ(merge_runs(paths).missing, 2 * kContexts / 4);
}

TEST(RunFile, RefusesOtherSettingsShardsAndFiles) {
  const DataFolder folder;
  const std::string path = folder.path() + "/run";
  { RunFile run(path, settings(), {1, 2}); }
  const auto said = [&](auto&& act) -> std::string {
    try {
      act();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  nlohmann::json other = settings();
  other["seed"] = 2;
  EXPECT_THAT(said([&] { RunFile(path, other, {1, 2}); }), HasSubstr("other settings (seed)"));
  EXPECT_THAT(said([&] { RunFile(path, settings(), {2, 2}); }), HasSubstr("other settings (shard)"));
  const std::string second = folder.path() + "/second";
  { RunFile run(second, other, {2, 2}); }
  EXPECT_THAT(said([&] { merge_runs({path, second}); }), HasSubstr("(seed)"));
  EXPECT_THAT(said([&] { merge_runs({folder.write("text", "hello\nyou\n")}); }),
              HasSubstr("text:1: expected a line of JSON"));
  EXPECT_THAT(said([&] { merge_runs({folder.write("json", "{}\n")}); }), HasSubstr("expected a run"));
  EXPECT_THAT(said([&] { merge_runs({folder.write("bad", text_of(path) + "{\"context\":1}\n")}); }),
              HasSubstr("bad:2: expected a record"));
  EXPECT_THAT(said([&] { merge_runs({folder.write("empty", "")}); }), HasSubstr("empty file"));
}

TEST(Shard, IsKOfN) {
  EXPECT_EQ(parse_shard("3/8").k, 3);
  EXPECT_TRUE(parse_shard("3/8").has(10));
  EXPECT_FALSE(parse_shard("3/8").has(11));
  for (const char* bad : {"", "3", "0/8", "9/8", "3/0", "a/8", "3/8x", "-1/2", "1/2/3"})
    EXPECT_THROW(parse_shard(bad), Error) << bad;
}

}  // namespace
}  // namespace mneme::eval

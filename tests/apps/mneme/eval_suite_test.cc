// mneme eval --suite, as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/apps/cut_texts.h"
#include "tests/apps/mneme/program.h"
#include "tests/progress.h"

namespace mneme::cli_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The smallest suite that selects: facts in 700 tokens, a budget of 256.
std::vector<std::string> facts(std::vector<std::string> more, const char* tasks = "number") {
  std::vector<std::string> command = {"eval",      "-m",        MNEME_MODEL_FILE,
                                      "--threads", "1",         "--suite",
                                      "facts",     "--tasks",   tasks,
                                      "--lengths", "700",       "--contexts",
                                      "2",         "--methods", "full,quest",
                                      "--budgets", "256",       "--no-progress"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

std::string out_of(const std::vector<std::string>& command) {
  const Outcome r = mneme(command);
  EXPECT_EQ(r.code, 0) << r.err;
  return r.out;
}

// Texts and scores of the answers of a run, by context and method; what was timed is left out.
json answers_of(const std::string& run) {
  std::istringstream in(run);
  std::string line;
  json all;
  std::getline(in, line);
  while (std::getline(in, line)) {
    const json r = json::parse(line);
    all[std::to_string(r.at("context").get<int>()) + r.at("method").get<std::string>()] = r.at("answers");
  }
  return all;
}

// Scores of the tables, without the column of seconds.
json scores_of(const std::string& text) {
  json cells = json::parse(text).at("cells");
  for (json& c : cells) {
    c.erase("seconds");
    c.erase("prefill_seconds");
  }
  return cells;
}

TEST(EvalSuite, PrintsATableOfMethodsAndTasks) {
  const TempFolder folder;
  const std::string svg = (folder.path() / "s.svg").string(), table = (folder.path() / "t.md").string();
  const std::string out = out_of(facts({"--svg", svg, "--table", table}, "number,where"));
  for (const char* text : {"facts, the question through decode", "| method | number (n=20) | where (n=20) | Avg. |",
                           "| quest b256 |", "KiB/step", "against full"})
    EXPECT_THAT(out, HasSubstr(text));
  EXPECT_THAT(read_file(svg), testing::StartsWith("<svg"));
  EXPECT_THAT(eval::cut_texts(read_file(svg)), testing::IsEmpty());
  EXPECT_THAT(out, HasSubstr(read_file(table)));
  const json full = json::parse(out_of(facts({"--json", "--question", "prefill"})));
  EXPECT_EQ(full.at("settings").at("question"), "prefill");
  EXPECT_GE(full.at("cells")[0].at("score_percent").get<double>(), 80);
  EXPECT_GT(full.at("cells")[0].at("half_width_95").get<double>(), 0);
}

TEST(EvalSuite, GoesOnAfterAKillAndGivesTheSameAnswers) {
  const TempFolder folder;
  const std::string whole = (folder.path() / "whole.jsonl").string(), cut = (folder.path() / "cut.jsonl").string();
  const json wanted = scores_of(out_of(facts({"--run", whole, "--json"})));
  {
    Running killed([&] {
      auto command = facts({"--run", cut, "--json"});
      command.insert(command.begin(), MNEME_BINARY);
      return command;
    }());
    // Killed with some of the 4 records written; where it has ended before, the run is whole and goes on as well.
    wait_until([&] {
      const std::string text = std::filesystem::exists(cut) ? read_file(cut) : "";
      return std::count(text.begin(), text.end(), '\n') >= 2;
    });
    kill(killed.pid(), SIGKILL);
    killed.wait();
  }
  EXPECT_EQ(scores_of(out_of(facts({"--run", cut, "--json"}))), wanted);
  EXPECT_EQ(answers_of(read_file(cut)), answers_of(read_file(whole)));
  const Outcome other = mneme(facts({"--run", cut, "--seed", "2"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("other settings (seed)"));
}

TEST(EvalSuite, ShardsMergeIntoTheWholeTable) {
  const TempFolder folder;
  std::vector<std::string> merge = {"eval", "merge", "--json"};
  for (const char* shard : {"2/3", "1/3", "3/3"}) {
    merge.push_back((folder.path() / ("run" + std::string(1, *shard))).string());
    out_of(facts({"--shard", shard, "--run", merge.back()}, "number,where"));
  }
  EXPECT_EQ(scores_of(out_of(merge)), scores_of(out_of(facts({"--json"}, "number,where"))));
  merge.pop_back();
  const Outcome some = mneme(merge);
  EXPECT_EQ(some.code, 1);
  EXPECT_THAT(some.err, HasSubstr("have no record"));
}

TEST(EvalSuite, TakesAUsersFileATemplateAndAGrader) {
  const TempFolder folder;
  std::string rows;
  for (int i = 0; i < 3; ++i)
    rows +=
        R"({"context":"The secret number of bird-tree is 4711.","question":"What is the secret number of bird-tree?",)"
        R"("answers":["4711"]})"
        "\n";
  const std::string file = folder.write("mine.jsonl", rows);
  const std::string form = folder.write("template", "{context}\n\n\n{question}");
  const std::vector<std::string> command = {
      "eval", "-m",        MNEME_MODEL_FILE, "--suite", "jsonl",        "--data",       file, "--template",
      form,   "--methods", "full",           "-c",      "512",          "--max-tokens", "8",  "--contexts",
      "2",    "--grader",  "last_number",    "--json",  "--no-progress"};
  const json out = json::parse(out_of(command));
  EXPECT_EQ(out.at("cells")[0].at("questions"), 2);
  EXPECT_EQ(out.at("cells")[0].at("score_percent"), 100);
  EXPECT_EQ(out.at("settings").at("grader"), "last_number");
  folder.write("mine.jsonl", "{\"context\":1\n");
  const Outcome broken = mneme(command);
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.err, HasSubstr("mine.jsonl:1: expected a JSON object"));
}

TEST(EvalSuite, FeedsLongAnswersAndTellsWhatHappensAlongThem) {
  const json out = json::parse(
      out_of({"eval",      "-m",       MNEME_MODEL_FILE, "--suite", "long",      "--tasks",      "trace",
              "--lengths", "700",      "--max-tokens",   "300",     "--methods", "full,louiskv", "--budgets",
              "256",       "--forced", "--along",        "100",     "--json",    "--no-progress"}));
  EXPECT_GE(out.at("cells")[0].at("score_percent").get<double>(), 20) << "full attention foresees most states";
  ASSERT_EQ(out.at("lines").size(), 2u);
  EXPECT_GE(out.at("lines")[0].at("percent_by_eighth")[0].get<double>(), 60);
  ASSERT_GE(out.at("along").size(), 4u);
  EXPECT_EQ(out.at("along")[0].at("answer_tokens"), 100);
  EXPECT_GT(out.at("along").back().at("segments").get<int>(), 0) << "LouisKV's segments of the answer";
  EXPECT_GT(out.at("along").back().at("kv_bytes").get<int>(), 0);
}

// Every turn is scored behind the reference answers of those before, whether its own answer is fed or not.
TEST(EvalSuite, AsksConversationsTurnByTurn) {
  std::vector<std::string> line = {
      "eval",         "-m", MNEME_MODEL_FILE, "--suite",    "long",      "--tasks", "lookups", "--lengths",    "600",
      "--max-tokens", "90", "--methods",      "full,quest", "--budgets", "256",     "--json",  "--no-progress"};
  const json free = json::parse(out_of(line));
  line.emplace_back("--forced");
  const json fed = json::parse(out_of(line));
  ASSERT_EQ(free.at("cells").size(), 2u);
  const int turns = free.at("cells")[0].at("questions");
  EXPECT_GE(turns, 3);
  EXPECT_EQ(fed.at("cells")[0].at("questions"), turns);
  EXPECT_GE(free.at("cells")[0].at("score_percent").get<double>(), 50);
  EXPECT_GE(fed.at("cells")[0].at("score_percent"), free.at("cells")[0].at("score_percent"))
      << "a right greedy answer is foreseen token by token";
}

TEST(EvalFigure, DrawsFromAModelAndFromRuns) {
  const TempFolder folder;
  const std::string run = (folder.path() / "run.jsonl").string(), svg = (folder.path() / "f.svg").string();
  out_of(facts({"--run", run}));
  for (const char* name : {"budget", "turnover", "depth", "bytes"}) {
    out_of({"eval", "figure", name, "--runs", run, "--svg", svg});
    EXPECT_THAT(read_file(svg), testing::StartsWith("<svg")) << name;
    EXPECT_THAT(eval::cut_texts(read_file(svg)), testing::IsEmpty()) << name;
  }
  const json map = json::parse(out_of({"eval", "figure", "sparsity-output", "-m", MNEME_MODEL_FILE, "--lengths", "700",
                                       "--threads", "1", "--json", "--no-progress"}));
  ASSERT_EQ(map.at("data")[0].at("values").size(), 8u) << "layers";
  EXPECT_EQ(map.at("data")[0].at("values")[0].size(), 8u) << "query heads";
  const Outcome latency = mneme({"eval", "figure", "latency"});
  EXPECT_NE(latency.code, 0);
  EXPECT_THAT(latency.err, HasSubstr("mneme bench decode --device cuda"));
}

TEST(EvalSuite, SaysWhatIsWrongWithAnOption) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--suite", "helmet"}, "no suite is called 'helmet'"},
      {{"--suite", "longbench"}, "needs --data"},
      {{"--suite", "facts", "--shard", "4/3"}, "--shard 4/3: expected K/N"},
      {{"--suite", "facts", "--grader", "bleu"}, "no scorer is called 'bleu'"},
      {{"--suite", "facts", "--paper", "kivi"}, "no paper is called 'kivi'"},
      {{"--suite", "facts", "--tasks", "turns"}, "--tasks turns: no such task in this suite"},
  };
  for (const auto& [more, wanted] : cases) {
    std::vector<std::string> command = {"eval", "-m", MNEME_MODEL_FILE, "--no-progress"};
    command.insert(command.end(), more.begin(), more.end());
    const Outcome r = mneme(command);
    EXPECT_EQ(r.code, 2) << wanted;
    EXPECT_THAT(r.err, HasSubstr(wanted));
  }
}

}  // namespace
}  // namespace mneme::cli_test

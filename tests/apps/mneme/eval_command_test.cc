// mneme eval and its subcommands, as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/apps/cut_texts.h"
#include "tests/apps/mneme/program.h"

namespace mneme::cli_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The smallest that still selects: 700 tokens, a budget of 256.
std::vector<std::string> small(std::vector<std::string> command, std::vector<std::string> more) {
  command.insert(command.begin(), "eval");
  for (const char* word : {"-m", MNEME_MODEL_FILE, "--lengths", "700", "--contexts", "1", "--tasks", "number"})
    command.push_back(word);
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

json run_json(std::vector<std::string> arguments) {
  const Outcome r = mneme(std::move(arguments));
  EXPECT_EQ(r.code, 0) << r.err;
  return r.code == 0 ? json::parse(r.out) : json();
}

TEST(Eval, NeedsNoProseAndTellsEverythingThatWasSet) {
  const json out = run_json(small({}, {"--methods", "full,window,fier:group=64", "--kv-budget", "256", "--json"}));
  EXPECT_EQ(out.at("settings").at("prose"), "generated");
  EXPECT_EQ(out.at("settings").at("question"), "decode");
  EXPECT_EQ(out.at("origin").at("command")[0], "mneme");
  EXPECT_FALSE(out.at("origin").at("commit").get<std::string>().empty());
  ASSERT_EQ(out.at("cells").size(), 3u);
  EXPECT_EQ(out["cells"][0].at("method"), "full");
  EXPECT_EQ(out["cells"][0].at("answers"), 10);
  EXPECT_GE(out["cells"][0].at("right").get<int>(), 8);
  EXPECT_LT(out["cells"][1].at("right").get<int>(), 8) << "the window holds a third of the facts";
  EXPECT_EQ(out["cells"][2].at("method"), "fier:group=64 b256");
  EXPECT_EQ(out["settings"]["methods"][2].at("group"), "64");
}

// Sums in another order: the answers are the same.
TEST(Eval, RanksAnswerAsOneDoes) {
  const std::vector<std::string> rest = {"--methods", "full,window", "--budgets", "256", "--deterministic", "--json"};
  std::vector<std::string> ranks = rest;
  ranks.insert(ranks.end(), {"--tensor-parallel-size", "2"});
  const json one = run_json(small({}, rest)), two = run_json(small({}, ranks));
  ASSERT_EQ(one.at("cells").size(), 2u);
  for (std::size_t i = 0; i < 2; ++i)
    for (const char* count : {"method", "answers", "right"})
      EXPECT_EQ(two.at("cells")[i].at(count), one["cells"][i].at(count));
}

TEST(Eval, GoesOnWhereItWasInterrupted) {
  const TempFolder folder;
  const std::string file = (folder.path() / "run.jsonl").string();
  const std::vector<std::string> rest = {"--methods", "full,window", "--budgets", "256", "--run", file};
  ASSERT_EQ(mneme(small({}, rest)).code, 0);
  std::string lines = read_file(file);
  ASSERT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  const std::size_t cut = lines.size() - 30;  // in the middle of the last record
  const std::string kept = folder.write("run.jsonl", lines.substr(0, cut));
  const Outcome again = mneme(small({}, rest));
  EXPECT_EQ(again.code, 0) << again.err;
  const std::string repaired = read_file(kept);
  EXPECT_EQ(std::count(repaired.begin(), repaired.end(), '\n'), 3);
  EXPECT_EQ(repaired.substr(0, lines.find("window")), lines.substr(0, lines.find("window")));

  std::vector<std::string> other = rest;
  other.insert(other.end(), {"--seed", "2"});
  const Outcome refused = mneme(small({}, other));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("other settings"));
}

TEST(Eval, CalibratesTheGateOfAMethod) {
  const json out =
      run_json(small({"calibrate"}, {"--kv-budget", "256", "--kv-sink", "32", "--kv-recent", "64", "--json"}));
  const json& c = out.at("calibration");
  EXPECT_TRUE(c.at("reached").get<bool>());
  const double rate = c.at("runs").back().at("correction_rate");
  EXPECT_GE(rate, 0.1);
  EXPECT_LE(rate, 0.2);
  EXPECT_EQ(c.at("heads").size(), 14u);  // layer 0 is dense
  const Outcome held = mneme(small({"calibrate"}, {"--method", "louiskv", "--held", "95", "--kv-budget", "256",
                                                   "--kv-sink", "32", "--kv-recent", "64"}));
  ASSERT_EQ(held.code, 0) << held.err;
  EXPECT_THAT(held.out, testing::AllOf(HasSubstr("| 2 | 100.0 % | 100.0 % | 100.0 % |"), HasSubstr("--kv louiskv:")));
  EXPECT_THAT(mneme(small({"calibrate"}, {"--held", "95", "--kv-budget", "256"})).err,
              HasSubstr("calibrate it by --rate"));
  const Outcome none = mneme(small({"calibrate"}, {"--method", "quest"}));
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("schedule=speculative"));
}

// The commands that failed with freekv's default sinks and window: a bare eval with its methods and budget of 512, and
// calibrate.
TEST(Eval, DefaultsOfEveryMethodFitABudgetOf512) {
  const Outcome all = mneme(small({}, {}));
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, testing::AllOf(HasSubstr("freekv b512"), HasSubstr("fier b512")));
  EXPECT_THAT(all.err, HasSubstr("freekv: the budget of 512 tokens shrinks the default sinks and window"));
  const std::string head = all.out.substr(0, all.out.find('\n'));
  EXPECT_THAT(head, testing::Not(HasSubstr("recall"))) << "columns that say nothing are left out";
  EXPECT_LE(std::count(head.begin(), head.end(), '|'), 13);
  const Outcome calibrated = mneme(small({"calibrate"}, {"--kv-budget", "512"}));
  EXPECT_NE(calibrated.code, 2) << calibrated.err;
  EXPECT_THAT(calibrated.out,
              testing::ContainsRegex("Use it with: mneme run \\.\\.\\. --kv freekv:budget=512,tau=-?[0-9.]+\n"));
}

TEST(Eval, ShowsHowQueriesMove) {
  const TempFolder folder;
  const std::string svg = (folder.path() / "similarity.svg").string();
  const Outcome r = mneme(small({"similarity"}, {"--svg", svg}));
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* text : {"| layer | head 0 |", "| 0.5 |", "box, pages of 16"}) EXPECT_THAT(r.out, HasSubstr(text));
  EXPECT_THAT(read_file(svg), testing::StartsWith("<svg"));
  EXPECT_THAT(eval::cut_texts(read_file(svg)), testing::IsEmpty());
}

TEST(Eval, CountsHitsOfDeviceCaches) {
  const json out =
      run_json(small({"hits"}, {"--methods", "quest:unit=page:32", "--kv-budget", "256", "--kv-sink", "32",
                                "--kv-recent", "64", "--dense-layers", "none", "--slots", "1,2,8", "--json"}));
  const json& hits = out.at("hits");
  ASSERT_EQ(hits.size(), 3u);
  EXPECT_GT(hits[0].at("selected").get<int>(), 100);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(hits[i].at("selected"), hits[0].at("selected"));
  EXPECT_LE(hits[0].at("hits").get<int>(), hits[1].at("hits").get<int>());
  EXPECT_LE(hits[1].at("hits").get<int>(), hits[2].at("hits").get<int>());
  EXPECT_GT(hits[2].at("hits").get<int>(), 0);
}

TEST(Eval, RunsAblationsByName) {
  const json out = run_json(small({"ablate"}, {"--sets", "groups,tau", "--budget", "400", "--tau", "0.6", "--json"}));
  ASSERT_EQ(out.at("cells").size(), 1u + 6 + 6);
  const json& methods = out.at("settings").at("methods");
  EXPECT_EQ(methods[1].at("label"), "fier:group=32 b400");
  EXPECT_NEAR(methods[1].at("index_load_ratio").get<double>(), 0.125, 1e-9);
  EXPECT_NEAR(methods[3].at("index_load_ratio").get<double>(), (1 + 32.0 / 256) / 16, 1e-9);
  EXPECT_EQ(methods[9].at("tau"), "0.6");
  const Outcome unknown = mneme(small({"ablate"}, {"--sets", "colours"}));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("pooling, gate, tau"));
}

// The question before the context as well, for methods that read prompts by it.
TEST(Eval, MarksTheQuestionOfAPrompt) {
  const json out = run_json(
      small({}, {"--methods", "full,actqkv", "--budgets", "256", "--audit", "2", "--question-span", "--json"}));
  EXPECT_TRUE(out.at("settings").at("question_span").get<bool>());
  ASSERT_EQ(out.at("cells").size(), 2u);
  EXPECT_GE(out["cells"][0].at("right").get<int>(), 8);
  const double rank = out["cells"][1].at("rank_correlation");
  EXPECT_LE(std::abs(rank), 1.0);
  ASSERT_EQ(out["cells"][1].at("score_perplexity_by_layer").size(), 8u);
  for (const json& p : out["cells"][1]["score_perplexity_by_layer"]) {
    EXPECT_GT(p.get<double>(), 0.0);
    EXPECT_LE(p.get<double>(), 1.0 + 1e-9);
  }
  const Outcome turns = mneme({"eval", "-m", MNEME_MODEL_FILE, "--tasks", "turns", "--question-span"});
  EXPECT_EQ(turns.code, 2);
  EXPECT_THAT(turns.err, HasSubstr("turns"));
}

TEST(Eval, SaysWhatIsMissing) {
  const Outcome twice = mneme(small({}, {"--kv-budget", "256", "--budgets", "512"}));
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("--kv-budget and --budgets: expected one of the two"));
  const Outcome none = mneme({"eval", "--tasks", "number"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--model"));
  const Outcome task = mneme({"eval", "-m", MNEME_MODEL_FILE, "--tasks", "numbr"});
  EXPECT_EQ(task.code, 2);
  EXPECT_THAT(task.err, HasSubstr("numbr"));
}

}  // namespace
}  // namespace mneme::cli_test

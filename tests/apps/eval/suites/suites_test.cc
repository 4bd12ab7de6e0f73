// Files of published benchmarks, as prompts and references; hostile files.
#include "apps/eval/suites/suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/eval/suites/csv.h"
#include "apps/eval/suites/longbench_prompts.h"
#include "apps/eval/suites/prompt.h"
#include "apps/eval/suites/rows.h"
#include "mneme/error.h"
#include "tests/apps/eval/suites/data_folder.h"

namespace mneme::eval {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// What reading everything of a suite says.
std::string error_of(std::string_view suite, const SuiteSetting& setting) {
  try {
    for (const SuiteContext& context : read_suite(find_suite(suite), setting)) context.make();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

SuiteItem only(const std::vector<SuiteContext>& contexts) {
  EXPECT_EQ(contexts.size(), 1u);
  return contexts.at(0).make().at(0);
}

TEST(Suites, LongBenchsPromptsAndLengthsAreThePublishedOnes) {
  const json prompts = json::parse(text_of(MNEME_DATA "/dataset2prompt.json"));
  const json lengths = json::parse(text_of(MNEME_DATA "/dataset2maxlen.json"));
  ASSERT_EQ(longbench_tasks().size(), prompts.size());
  for (const LongBenchTask& task : longbench_tasks()) {
    EXPECT_EQ(task.prompt, prompts.at(std::string(task.name)).get<std::string>());
    EXPECT_EQ(task.answer_tokens, lengths.at(std::string(task.name)).get<int>());
    EXPECT_NO_THROW(find_scorer(task.scorer));
  }
}

TEST(Suites, LongBenchReadsAFolderAsItIsPublished) {
  const DataFolder folder;
  folder.write("hotpotqa.jsonl", R"({"input":"Who?","context":"A {x} text","answers":["Ann","Bea"],"length":7,)"
                                 R"("dataset":"hotpotqa","all_classes":null,"_id":"ab"})");
  folder.write("trec_e.jsonl",
               "\n"
               R"({"input":"Q","context":"C","answers":["Human"],"length":5000,)"
               R"("all_classes":["Human","Loc"],"_id":"t"})"
               "\n");
  folder.write("other.jsonl", "{}");
  const auto contexts = read_suite(find_suite("longbench"), {.data = folder.path()});
  ASSERT_EQ(contexts.size(), 2u);
  const SuiteItem item = contexts[0].make().at(0);
  EXPECT_EQ(contexts[0].task, "hotpotqa");
  EXPECT_THAT(item.prompt, HasSubstr("passages.\nA {x} text\n\nAnswer"));
  EXPECT_EQ(item.prompt.substr(item.prompt.size() - item.question_bytes),
            "\n\nAnswer the question based on the given passages. Only give me the answer and do not output any other "
            "words.\n\nQuestion: Who?\nAnswer:");
  EXPECT_THAT(item.reference.answers, ElementsAre("Ann", "Bea"));
  EXPECT_EQ(item.scorer, "f1");
  const SuiteItem few = contexts[1].make().at(0);
  EXPECT_EQ(contexts[1].task, "trec");
  EXPECT_EQ(few.framing, Framing::kPlain);
  EXPECT_TRUE(few.first_line_only);
  EXPECT_THAT(few.groups, ElementsAre("4-8k"));
}

TEST(Suites, LongBenchV2IsAnArrayOfChoices) {
  const DataFolder folder;
  json row = {{"_id", "1"},      {"question", " Q? "}, {"choice_A", "a"}, {"choice_B", "b"},      {"choice_C", "c"},
              {"choice_D", "d"}, {"answer", "C"},      {"context", "T"},  {"difficulty", "hard"}, {"length", "short"}};
  const std::string file = folder.write("data.json", json::array({row}).dump());
  const SuiteItem item = only(read_suite(find_suite("longbench-v2"), {.data = file}));
  std::string wanted = text_of(MNEME_DATA "/longbench_v2.txt");
  for (const auto& [mark, value] : std::vector<std::pair<std::string, std::string>>{
           {"$DOC$", "T"}, {"$Q$", "Q?"}, {"$C_A$", "a"}, {"$C_B$", "b"}, {"$C_C$", "c"}, {"$C_D$", "d"}})
    wanted.replace(wanted.find(mark), mark.size(), value);
  EXPECT_EQ(item.prompt, wanted);
  EXPECT_THAT(item.groups, ElementsAre("hard", "short"));
  row["answer"] = "E";
  folder.write("data.json", json::array({row}).dump());
  EXPECT_THAT(error_of("longbench-v2", {.data = file}),
              HasSubstr("item 0: field 'answer': expected A, B, C or D, found E"));
}

TEST(Suites, InfiniteBenchAsksOpenModelsItsWay) {
  const DataFolder folder;
  folder.write("code_run.jsonl", R"({"id":0,"context":"def f","input":"Please give me func_7(-3).","answer":[4]})");
  folder.write("longbook_choice_eng.jsonl",
               R"({"id":1,"context":"B","input":"Q","answer":["y"],"options":["x","y","z","w"]})");
  const auto contexts = read_suite(find_suite("infinitebench"), {.data = folder.path()});
  ASSERT_EQ(contexts.size(), 2u);
  const SuiteItem choice = contexts[0].make().at(0), code = contexts[1].make().at(0);
  EXPECT_THAT(choice.prompt, HasSubstr("Question: Q\nA. x\nB. y\nC. z\nD. w\n\nThe letter of the correct answer is"));
  EXPECT_THAT(choice.reference.answers, ElementsAre("y", "B"));
  EXPECT_THAT(code.prompt, HasSubstr("There is a function called func_7 in"));
  EXPECT_THAT(code.prompt, HasSubstr("The value of func_7(-3) is"));
  EXPECT_THAT(code.reference.answers, ElementsAre("4"));
}

TEST(Suites, ReasoningSetsNameTheirFieldsDifferently) {
  const DataFolder folder;
  const std::string math =
      folder.write("math500.jsonl", R"({"problem":"1+1?","answer":"2","level":3,"unique_id":"u"})");
  EXPECT_THAT(only(read_suite(find_suite("math"), {.data = math})).reference.answers, ElementsAre("2"));
  const std::string gsm = folder.write("gsm8k.jsonl", R"({"question":"q","answer":"so\n#### 1,200"})");
  EXPECT_THAT(only(read_suite(find_suite("math"), {.data = gsm})).reference.answers, ElementsAre("1200"));
  const std::string gpqa =
      folder.write("gpqa.csv",
                   "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer "
                   "3\r\n\"What, \"\"now\"\"?\nSay\",right,w1,w2,w3\r\n");
  const SuiteItem item = only(read_suite(find_suite("gpqa"), {.data = gpqa}));
  EXPECT_THAT(item.prompt, HasSubstr("What, \"now\"?\nSay\n\nA) "));
  EXPECT_THAT(item.prompt, HasSubstr(item.reference.answers.at(0) + ") right"));
}

TEST(Suites, PublishedSamplesOfRulerAndPlansAreRead) {
  const DataFolder folder;
  folder.write("vt/validation.jsonl",
               R"({"index":3,"input":"text\nQuestion? Answer: they are: ","outputs":["A","B"],"length":9,)"
               R"("answer_prefix":" Answer: they are: "})");
  const SuiteItem vt = only(read_suite(find_suite("ruler"), {.data = folder.path()}));
  EXPECT_EQ(vt.prompt, "text\nQuestion?");
  EXPECT_EQ(vt.answer_prefix, " Answer: they are: ");
  EXPECT_EQ(vt.scorer, "contains_all");
  const std::string plans =
      folder.write("Dataset_short.json",
                   R"([{"prompt":"Plan","checks_once":{"3":"a party"},"type":"Week","prefix":"Week 1","number":52}])");
  const SuiteItem plan = only(read_suite(find_suite("longgenbench"), {.data = plans}));
  EXPECT_THAT(plan.reference.answers, ElementsAre("Week 52"));
  EXPECT_EQ(plan.max_tokens, 16000);
  EXPECT_EQ(plan.stop, "*** finished");
}

TEST(Suites, AUsersFileTakesATemplate) {
  const DataFolder folder;
  const std::string file = folder.write("mine.jsonl", R"({"doc":"D","q":"Q","gold":"G","task":"t"})");
  SuiteSetting s{.data = file};
  s.jsonl.prompt_template = "Read {{this}}: {doc} - {q}";
  s.jsonl.context = "doc";
  s.jsonl.answers = "gold";
  const SuiteItem item = only(read_suite(find_suite("jsonl"), s));
  EXPECT_EQ(item.prompt, "Read {this}: D - Q");
  EXPECT_EQ(item.question_bytes, 4u);
  EXPECT_THAT(item.groups, ElementsAre("t"));
  s.jsonl.prompt_template = "{doc";
  EXPECT_THAT(error_of("jsonl", s), HasSubstr("template: expected '}'"));
  s.jsonl.prompt_template = "{text}";
  EXPECT_THAT(error_of("jsonl", s),
              HasSubstr("mine.jsonl:1: field 'text': expected a string, found no such field among"));
}

// Each line of a file that somebody broke, and what is said of it.
TEST(Suites, HostileFilesAreNamedByLineFieldExpectedAndFound) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "expected JSON objects, found an empty file"},
      {"[]", "found an empty file"},
      {"{\"input\":1", "mine.jsonl:1: expected a JSON object, found {\"input\":1 (fault at byte"},
      {"[1]", "item 0: expected a JSON object, found number"},
      {"7", "mine.jsonl:1: expected a JSON object, found number"},
      {"\n\n{\"input\":\"\xff\"}", "mine.jsonl:3: expected a JSON object, found"},
      {R"({"input":[],"context":"c","answers":"a"})", "field 'input': expected a string, found array"},
      {R"({"input":"i","context":"c","answers":[]})",
       "field 'answers': expected a string or an array of strings, found an empty array"},
      {R"({"input":"i","context":"c","answers":[{}]})", "found an array with object"},
      {R"({"input":"i","context":"c"})",
       "field 'answers': expected a string or an array of strings, found no such field"},
      {std::string(5000, '['), "expected a JSON object"},
      {R"({"input":1e5555})", "mine.jsonl:1: expected numbers that fit a double, found another"},
  };
  for (const auto& [content, wanted] : cases) {
    const DataFolder folder;
    SuiteSetting s{.data = folder.write("mine.jsonl", content)};
    s.jsonl.prompt_template = "{context} {input}";
    EXPECT_THAT(error_of("jsonl", s), HasSubstr(wanted)) << content.substr(0, 60);
  }
  const DataFolder folder;
  EXPECT_THAT(error_of("longbench", {.data = folder.path()}), HasSubstr("expected files *.jsonl, found none"));
  EXPECT_THAT(error_of("longbench", {.data = "/nowhere"}), HasSubstr("/nowhere: no such file or folder"));
  EXPECT_THAT(error_of("longbench", {}), HasSubstr("needs --data"));
  EXPECT_THAT(error_of("passkey", {.data = folder.path()}), HasSubstr("takes no --data"));
  EXPECT_THAT(error_of("longbench", {.data = folder.path(), .tasks = {"qa"}}), HasSubstr("--tasks qa: no such task"));
}

TEST(Csv, RefusesWhatIsNoTable) {
  const DataFolder folder;
  const auto said = [&](const std::string& content) -> std::string {
    try {
      read_csv(folder.write("t.csv", content));
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(said("a,b\n1\n"), HasSubstr("t.csv:2: expected 2 fields, found 1"));
  EXPECT_THAT(said("a,b\n1,\"2\n"), HasSubstr("t.csv:2: expected a closing quote"));
  EXPECT_THAT(said("a,b\n"), HasSubstr("found none"));
  EXPECT_THAT(said("a\n\xff\n"), HasSubstr("expected UTF-8"));
}

TEST(Suites, NamesAreTold) {
  try {
    find_suite("helmet");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("longbench, longbench-v2"));
  }
}

}  // namespace
}  // namespace mneme::eval

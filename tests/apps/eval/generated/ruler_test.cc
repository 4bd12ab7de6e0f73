// Generated benchmarks follow the published generators' rules: counts, positions, formats, lengths.
#include "apps/eval/generated/ruler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "apps/eval/generated/long_answer.h"
#include "apps/eval/generated/needle.h"
#include "apps/eval/scorers/scorer.h"
#include "apps/eval/scorers/words.h"
#include "mneme/error.h"

namespace mneme::eval {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class FourCharacters final : public TokenCounter {
 public:
  std::int64_t count(std::string_view text) const override { return static_cast<std::int64_t>(text.size() / 4); }
};

const TextSource& prose() {
  static const TextSource source = TextSource::generated();
  return source;
}

const RulerTask& task_of(std::string_view name) {
  for (const RulerTask& t : ruler_tasks())
    if (t.name == name) return t;
  ADD_FAILURE() << name;
  return ruler_tasks().front();
}

GeneratedQuestion sample(std::string_view name, std::int64_t length, std::int64_t number = 0) {
  const FourCharacters counter;
  return make_ruler(task_of(name), {prose(), counter, length, name}, 20, 42, number);
}

std::size_t occurrences(std::string_view text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

std::string context_of(const GeneratedQuestion& q) {
  return q.prompt.substr(0, q.prompt.size() - q.question_bytes);
}

TEST(Ruler, HasThirteenTasksThatFillTheirLengthAndNoMore) {
  EXPECT_EQ(ruler_tasks().size(), 13u);
  const FourCharacters counter;
  for (const RulerTask& task : ruler_tasks())
    for (std::int64_t length : {2048, 4096, 16384}) {
      const GeneratedQuestion q = sample(task.name, length);
      const std::int64_t tokens = counter.count(q.prompt + q.answer_prefix) + task.answer_tokens + 20;
      EXPECT_LE(tokens, length) << task.name;
      // A step of the published generator is 500 words of an essay, or 25 lines.
      EXPECT_GE(tokens, length - 1100) << task.name;
      const double right =
          find_scorer(task.scorer).score(fmt::format("{}", fmt::join(q.answers, " ")), {q.answers, {}});
      EXPECT_EQ(right, 1) << task.name;
    }
}

TEST(Ruler, SamplesAreFunctionsOfTheirNumber) {
  EXPECT_EQ(sample("vt", 2048, 3).prompt, sample("vt", 2048, 3).prompt);
  EXPECT_NE(sample("vt", 2048, 3).prompt, sample("vt", 2048, 4).prompt);
  EXPECT_NE(sample("niah_single_1", 2048).answers, sample("niah_single_2", 2048).answers);
}

TEST(Ruler, SingleNeedlesAreAskedForInTheSingular) {
  const GeneratedQuestion q = sample("niah_single_1", 2048);
  EXPECT_THAT(q.prompt, StartsWith("A special magic number is hidden within the following text. Make sure to memorize "
                                   "it. I will quiz you about the number afterwards.\n"));
  EXPECT_THAT(q.prompt, EndsWith("mentioned in the provided text?"));
  EXPECT_THAT(q.answer_prefix, StartsWith(" The special magic number for "));
  EXPECT_THAT(q.answer_prefix, EndsWith(" mentioned in the provided text is"));
  ASSERT_EQ(q.answers.size(), 1u);
  EXPECT_EQ(q.answers[0].size(), 7u);
  EXPECT_EQ(occurrences(context_of(q), q.answers[0]), 1u);
  EXPECT_EQ(occurrences(q.prompt.substr(q.prompt.size() - q.question_bytes), q.answers[0]), 0u);
  EXPECT_THAT(sample("niah_single_3", 2048).answers[0], testing::MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-"
                                                                              "[89ab][0-9a-f]{3}-[0-9a-f]{12}"));
}

TEST(Ruler, SeveralNeedlesStandAtDifferentPlaces) {
  const GeneratedQuestion values = sample("niah_multivalue", 4096);
  EXPECT_EQ(values.answers.size(), 4u);
  EXPECT_EQ(occurrences(context_of(values), "One of the special magic numbers for "), 4u);
  const GeneratedQuestion queries = sample("niah_multiquery", 4096);
  EXPECT_EQ(queries.answers.size(), 4u);
  EXPECT_THAT(queries.prompt.substr(queries.prompt.size() - queries.question_bytes),
              testing::ContainsRegex("for .+, .+, .+, and .+ mentioned"));
  EXPECT_EQ(occurrences(context_of(sample("niah_multikey_1", 4096)), "One of the special magic numbers for "), 4u);
  const GeneratedQuestion lines = sample("niah_multikey_3", 4096);
  const std::string context = context_of(lines);
  EXPECT_EQ(occurrences(context, "\n"), occurrences(context, "One of the special magic uuids for "))
      << "every line is a needle";
}

TEST(Ruler, DepthsOfNeedlesCoverTheContext) {
  std::set<int> tenths;
  for (int i = 0; i < 60; ++i) tenths.insert(static_cast<int>(10 * sample("niah_single_2", 4096, i).depth));
  EXPECT_GE(tenths.size(), 9u);
}

TEST(Ruler, VariablesFormOneChainInOrder) {
  const GeneratedQuestion q = sample("vt", 4096);
  ASSERT_EQ(q.answers.size(), 5u);
  std::size_t last = 0;
  for (std::size_t i = 0; i < q.answers.size(); ++i) {
    EXPECT_EQ(q.answers[i].size(), 5u);
    const std::string line =
        i == 0 ? "VAR " + q.answers[0] + " = " : "VAR " + q.answers[i] + " = VAR " + q.answers[i - 1];
    const std::size_t at = q.prompt.find(line);
    ASSERT_NE(at, std::string::npos) << line;
    EXPECT_GT(at, last);
    last = at;
  }
  EXPECT_EQ(occurrences(q.prompt, "Memorize and track the chain(s)"), 2u)
      << "one example with its answer, then the task";
  EXPECT_THAT(q.answer_prefix, HasSubstr("5 variables are assigned the value "));
}

TEST(Ruler, CommonWordsStandThirtyTimesAndTheOthersThree) {
  const GeneratedQuestion q = sample("cwe", 8192);
  const std::string list = q.prompt.substr(q.prompt.rfind("appear most often.\n"));
  std::map<std::string, int> counts;
  const auto words = split_words(list.substr(0, list.find("\nQuestion:")));
  for (std::size_t i = 3; i + 1 < words.size(); i += 2) {
    EXPECT_EQ(words[i], std::to_string((i - 3) / 2 + 1) + ".");
    ++counts[words[i + 1]];
  }
  EXPECT_EQ(q.answers.size(), 10u);
  for (const auto& [word, n] : counts)
    EXPECT_EQ(n, std::count(q.answers.begin(), q.answers.end(), word) > 0 ? 30 : 3) << word;
}

TEST(Ruler, FrequentWordsFollowZeta) {
  const GeneratedQuestion q = sample("fwe", 8192);
  std::map<std::string, int> counts;
  for (const std::string& w : split_words(context_of(q))) ++counts[w];
  ASSERT_EQ(q.answers.size(), 3u);
  const double n = counts["..."] * 1.6449340668482264;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(q.answers[i].size(), 6u);
    const double rank = static_cast<double>(i) + 2;
    EXPECT_NEAR(counts[q.answers[i]], n / (rank * rank * 1.6449340668482264), 1.5);
  }
}

TEST(Ruler, DocumentsAreNumberedAndHoldTheAnswer) {
  for (const char* name : {"qa_1", "qa_2"}) {
    const GeneratedQuestion q = sample(name, 4096);
    const std::size_t n = occurrences(q.prompt, "Document ");
    EXPECT_GE(n, 10u);
    EXPECT_THAT(q.prompt, HasSubstr(fmt::format("\n\nDocument {}:\n", n)));
    EXPECT_THAT(context_of(q), HasSubstr(q.answers[0]));
    EXPECT_EQ(q.answer_prefix, " Answer:");
  }
}

TEST(Ruler, RefusesALengthThatHoldsNoSample) {
  try {
    sample("vt", 300);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kOption);
    EXPECT_THAT(e.what(), HasSubstr("vt: the shortest sample has"));
  }
}

TEST(Needle, StandsBehindASentenceAtItsDepth) {
  const FourCharacters counter;
  for (double depth : {0.0, 0.5, 1.0}) {
    const GeneratedQuestion q = make_needle(prose(), counter, 4000, depth, 1, 0);
    EXPECT_LE(counter.count(q.prompt), 4000);
    EXPECT_GE(counter.count(q.prompt), 3950);
    const std::size_t at = q.prompt.find("\nThe special magic ");
    EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(q.prompt.size()), depth, 0.06);
    EXPECT_EQ(occurrences(q.prompt, q.answers[0]), 1u);
    EXPECT_TRUE(depth != 0.5 || q.prompt[at - 1] == '.');
  }
}

TEST(Passkey, HasFiveLinesAndTheKeyTwice) {
  const FourCharacters counter;
  const GeneratedQuestion q = make_passkey(counter, 2000, 0.3, 1, 4);
  EXPECT_EQ(std::count(q.prompt.begin(), q.prompt.end(), '\n'), 4);
  EXPECT_EQ(occurrences(q.prompt, " " + q.answers[0] + (". Remember it. " + q.answers[0]) + " is the pass key.\n"), 1u);
  EXPECT_THAT(q.prompt, EndsWith("\nWhat is the pass key? The pass key is"));
  EXPECT_LE(counter.count(q.prompt), 2000);
  EXPECT_GE(counter.count(q.prompt), 2000 - 128 / 4);
}

TEST(Needle, StandsBesideOthersLikeIt) {
  const FourCharacters counter;
  const GeneratedQuestion q = make_needle(prose(), counter, 2000, 0.5, 1, 0, 6);
  EXPECT_EQ(occurrences(q.prompt, "\nThe special magic "), 7u);
  EXPECT_EQ(occurrences(q.prompt, q.answers[0]), 1u);
  const std::string question = q.prompt.substr(q.prompt.size() - q.question_bytes);
  const std::size_t begin = question.find("magic ") + 6;
  const std::string city = question.substr(begin, question.find(" number?") - begin);
  EXPECT_THAT(q.prompt, HasSubstr("The special magic " + city + " number is: " + q.answers[0] + "\n"));
}

TEST(LongAnswers, FollowFromTheirDocuments) {
  const FourCharacters counter;
  for (const LongTask& task : long_tasks()) {
    const LongQuestion q = make_long(task, prose(), counter, 6000, 100000, 1, 0);
    EXPECT_LE(counter.count(q.document), 6000) << task.name;
    EXPECT_GE(counter.count(q.document), 5700) << task.name;
    const LongQuestion cut = make_long(task, prose(), counter, 6000, 500, 1, 0);
    EXPECT_EQ(cut.document, q.document);
    EXPECT_LE(counter.count(cut.answer), 500) << task.name;
    if (!q.turns.empty()) {
      std::int64_t n = counter.count(cut.answer);
      for (const LongTurn& t : cut.turns) n += counter.count(t.question) + counter.count(t.answer);
      EXPECT_LE(n, 500) << task.name;
      EXPECT_GE(n, 400) << task.name;
      for (const LongTurn& t : q.turns) EXPECT_NE(t.answer, "") << task.name;
      continue;
    }
    EXPECT_GT(q.answer.size(), q.document.size() / 4) << task.name;
    EXPECT_THAT(q.answer, StartsWith(cut.answer)) << task.name;
    EXPECT_THAT(cut.answer, EndsWith("\n")) << task.name;
  }
  const LongQuestion written = make_long(long_tasks()[0], prose(), counter, 6000, 100000, 1, 0);
  EXPECT_THAT(written.document, HasSubstr(written.answer)) << "the register is its own answer";
}

}  // namespace
}  // namespace mneme::eval

// Scorers on answers worked out by hand from the suites' rules.
#include "apps/eval/scorers/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "apps/eval/scorers/boxed.h"
#include "apps/eval/scorers/edit_similarity.h"
#include "apps/eval/scorers/rouge.h"
#include "apps/eval/scorers/samples.h"
#include "apps/eval/scorers/words.h"
#include "mneme/error.h"

namespace mneme::eval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

double score(std::string_view name, std::string_view answer, std::vector<std::string> answers,
             std::vector<std::string> classes = {}) {
  return find_scorer(name).score(answer, {std::move(answers), std::move(classes)});
}

TEST(Scorers, HaveNamesThatAreTold) {
  std::set<std::string_view> names;
  for (const ScorerEntry& row : scorer_table()) EXPECT_TRUE(names.insert(row.name).second) << row.name;
  try {
    find_scorer("bleu");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kOption);
    EXPECT_THAT(e.what(), HasSubstr("exact, normalised"));
  }
}

TEST(Scorers, NoAnswerOfAnyScorerIsOutsideZeroAndOne) {
  for (const ScorerEntry& row : scorer_table())
    for (std::string_view answer :
         {"", "A", "the answer is:", "\\boxed{", "1,2,3", "\xff\xfe", "**Final Answer** \\boxed{A}"})
      for (const char* gold : {"A", "", "Week 3", "1"}) {
        const double s = row.score(answer, {{gold}, {"A", "B"}});
        EXPECT_TRUE(s >= 0 && s <= 1) << row.name << ": " << answer << " against " << gold;
      }
}

TEST(Words, AreNormalisedAsLongBenchDoes) {
  EXPECT_EQ(normalised("The  Cat's, an end\u00a0of A-Team!"), "cats end of ateam");
  EXPECT_EQ(normalised("theatre a"), "theatre");
  EXPECT_EQ(normalised("ÉCOLE"), "école");
  EXPECT_THAT(digit_runs("a12b003 4"), ElementsAre("12", "003", "4"));
  EXPECT_THAT(split_at("a\n\nb", '\n'), ElementsAre("a", "", "b"));
}

TEST(F1, CountsWordsOnceForEachOccurrence) {
  EXPECT_DOUBLE_EQ(score("f1", "cat cat", {"cat"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(score("f1", "", {""}), 0) << "no overlap is 0, also of nothing with nothing";
  EXPECT_DOUBLE_EQ(score("f1", "a blue cat", {"dog", "blue cat"}), 1);
  EXPECT_DOUBLE_EQ(score("f1_characters", "北京。", {"北 京"}), 1);
}

TEST(Rouge, CountsDistinctWordsAndIsNothingWithoutASentence) {
  EXPECT_DOUBLE_EQ(rouge_l("", "a b"), 0);
  EXPECT_DOUBLE_EQ(rouge_l("...", "a b"), 0);
  EXPECT_NEAR(rouge_l("a a a", "a"), 1, 1e-7);
  EXPECT_NEAR(rouge_l("A b", "a b"), 0.5, 1e-7) << "case counts";
  EXPECT_DOUBLE_EQ(rouge_l_sum("The cat.\nIt sat!", "the cat\nit SAT"), 1);
  EXPECT_DOUBLE_EQ(rouge_l_sum("a a b", "a b b"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(score("rouge_l_characters", "我爱北京", {"我爱北京"}) > 0.99, true);
}

TEST(Code, TakesTheFirstLineThatIsCode) {
  EXPECT_EQ(first_code_line("\n\n```python\n# x\nreturn 1\nreturn 2"), "return 1");
  EXPECT_EQ(first_code_line("// only\n# comments"), "");
  EXPECT_EQ(levenshtein_percent("abcd", "abxd"), 75);
  EXPECT_EQ(difflib_percent("abcd", "bcde"), 75);
  EXPECT_EQ(levenshtein_percent("", "a"), 0);
  EXPECT_EQ(difflib_percent("x" + std::string(300, 'a'), std::string(301, 'a')), 0)
      << "popular characters are not counted";
}

TEST(Labels, CountNumbersAndClasses) {
  EXPECT_DOUBLE_EQ(score("retrieval", "Paragraph 7, or 12", {"Paragraph 7"}), 0.5);
  EXPECT_DOUBLE_EQ(score("retrieval", "07", {"Paragraph 7"}), 0);
  EXPECT_DOUBLE_EQ(score("retrieval_zh", "段落3", {"段落3"}), 1);
  EXPECT_DOUBLE_EQ(score("count", "The answer: 11", {"11"}), 1);
  EXPECT_DOUBLE_EQ(score("count", "none", {"11"}), 0);
  EXPECT_DOUBLE_EQ(score("classification", "Human or Hum", {"Human"}, {"Hum", "Human", "Loc"}), 1);
}

TEST(Contained, FollowsRulerAndInfiniteBench) {
  EXPECT_DOUBLE_EQ(score("contains_all", "values: 12\x01 34", {"12", "34", "56"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(score("contains_any", "It was PARIS.", {"paris", "rome"}), 1);
  EXPECT_DOUBLE_EQ(score("contained", "It is the number 12.", {"12"}), 1);
  EXPECT_DOUBLE_EQ(score("contained", "It is 123", {"12"}), 0) << "whole words";
  EXPECT_DOUBLE_EQ(score("normalised", " The Cat. ", {"cat"}), 1);
  EXPECT_DOUBLE_EQ(score("exact", " The Cat. ", {"cat"}), 0);
  EXPECT_DOUBLE_EQ(score("word", "{\"value\": \"ab-12\"}", {"ab-12"}), 1);
  EXPECT_DOUBLE_EQ(score("dialogue", "It is likely Anna.", {"ANNA", "x"}), 1);
  EXPECT_DOUBLE_EQ(score("event_words", "Week 3: a visit to the museum", {"visit the museum", "birthday party"}), 0.5);
}

TEST(Letters, AreFoundInEveryFormThatSuitesAccept) {
  EXPECT_DOUBLE_EQ(score("longbench_v2", "**The correct answer is (C)**", {"C"}), 1);
  EXPECT_DOUBLE_EQ(score("longbench_v2", "The correct answer is C.", {"C"}), 1);
  EXPECT_DOUBLE_EQ(score("longbench_v2", "C", {"C"}), 0) << "the sentence is demanded";
  EXPECT_DOUBLE_EQ(score("longbench_v2", "The correct answer is A. No: The correct answer is (B)", {"B"}), 1)
      << "brackets first";
  EXPECT_DOUBLE_EQ(score("gpqa", "Answer: a bird\nANSWER : $D$", {"A"}), 1) << "the first match, whatever follows";
  EXPECT_DOUBLE_EQ(score("gpqa", "The answer is D", {"D"}), 0);
  EXPECT_DOUBLE_EQ(score("infinitebench_choice", "An owl", {"some text", "A"}), 1) << "the published rule";
  EXPECT_DOUBLE_EQ(score("infinitebench_choice", "the answer is: B", {"text", "B"}), 1);
  EXPECT_DOUBLE_EQ(score("infinitebench_choice", "it must be C then", {"text", "C"}), 1);
  EXPECT_DOUBLE_EQ(score("code_debug", "B. foo", {"foo", "B"}), 1);
  EXPECT_DOUBLE_EQ(score("code_debug", "The answer is: foo", {"foo", "B"}), 1);
  for (const char* answer :
       {"B", "(B)", "**B**", "B) because of A", "The answer is B.", "I think A cat... answer: (B)", "\\boxed{B}"})
    EXPECT_DOUBLE_EQ(score("letter", answer, {"B"}), 1) << answer;
  EXPECT_DOUBLE_EQ(score("letter", "A bird sings", {"A"}), 0) << "an article";
}

TEST(Numbers, AreReadWithSignsAndCommas) {
  EXPECT_DOUBLE_EQ(score("last_number", "so 1,234 and then $2,500.50.", {"#### 2500.5"}), 1);
  EXPECT_DOUBLE_EQ(score("last_number", "it is -3", {"3"}), 0);
  EXPECT_DOUBLE_EQ(score("first_number", "12.50 of 3", {"12.5"}), 1);
  EXPECT_DOUBLE_EQ(score("first_digits", "key 00123.", {"00123"}), 1);
  EXPECT_DOUBLE_EQ(score("first_digits", "key 123.", {"00123"}), 0);
  EXPECT_DOUBLE_EQ(score("number_list", "[1, 4, 9]", {"1", "4", "8"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(score("last_word", "The value is: -5.", {"-5"}), 1);
}

TEST(Boxed, AnswersAreExtractedAndNormalised) {
  EXPECT_EQ(last_boxed("a \\boxed{1} b \\boxed{\\frac{1}{2}}"), "\\frac{1}{2}");
  EXPECT_FALSE(last_boxed("\\boxed{1"));
  EXPECT_FALSE(last_boxed("no box"));
  EXPECT_DOUBLE_EQ(score("boxed", "\\boxed{ \\dfrac12 }", {"0.5"}), 1);
  EXPECT_DOUBLE_EQ(score("boxed", "\\boxed{x=3/4}", {"\\frac{3}{4}"}), 1);
  EXPECT_DOUBLE_EQ(score("boxed", "\\boxed{5\\text{ cm}}", {"5"}), 1);
  EXPECT_DOUBLE_EQ(score("boxed", "\\boxed{\\sqrt3}", {"\\sqrt{3}"}), 1);
  EXPECT_DOUBLE_EQ(score("boxed", "\\boxed{90^\\circ}", {"90"}), 1);
  EXPECT_DOUBLE_EQ(score("boxed_final", "\\boxed{1} **Final Answer** \\boxed{a b}", {"ab"}), 1);
  EXPECT_DOUBLE_EQ(score("boxed_final", "\\boxed{1}", {"1"}), 0) << "without the mark";
  EXPECT_DOUBLE_EQ(score("aime", "\\boxed{033^\\circ}", {"33"}), 1);
}

TEST(Lines, CountInOrder) {
  EXPECT_DOUBLE_EQ(score("lines", "1: a\n2: x\n3: c\n", {"1: a\n2: b\n3: c\n4: d"}), 0.5);
  EXPECT_DOUBLE_EQ(score("lines", "", {"a"}), 0);
  EXPECT_DOUBLE_EQ(score("completion", "Week 1: run #*# Week 2 #*# Week 9 #*# Week 2", {"Week 4"}), 0.5);
}

TEST(Samples, MeansOfRunsAndTheirIntervals) {
  EXPECT_DOUBLE_EQ(average_of_runs(std::vector{0.5, 1.0}), 0.75);
  EXPECT_DOUBLE_EQ(trimmed_average_of_runs(std::vector{0.0, 0.5, 0.6, 1.0}), 0.55);
  const Interval none = mean_interval({});
  EXPECT_EQ(none.mean, 0);
  EXPECT_DOUBLE_EQ(mean_interval(std::vector<double>(10, 1.0)).half_width, 0.3) << "the rule of three";
  EXPECT_NEAR(mean_interval(std::vector{0.0, 1.0, 0.0, 1.0}).half_width, 1.96 * 0.57735 / 2, 1e-4);
}

}  // namespace
}  // namespace mneme::eval

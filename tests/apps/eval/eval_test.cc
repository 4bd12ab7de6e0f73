#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "apps/eval/generated/task.h"
#include "apps/eval/report.h"
#include "mneme/error.h"
#include "src/base/size32.h"
#include "tests/apps/cut_texts.h"

namespace mneme::eval {
namespace {

using ::testing::HasSubstr;

// Prose of made-up words: enough of them, none twice the same sentence.
TextSource prose() {
  Rng rng(5);
  std::vector<std::string> words;
  for (int i = 0; i < 400; ++i) {
    std::string w;
    for (int c = draw_between(rng, 4, 8); c > 0; --c) w += static_cast<char>('a' + rng.below(26));
    words.push_back(w);
  }
  std::string text;
  while (text.size() < 120000) {
    for (int i = 0; i < 9; ++i) text += words[rng.below(words.size())] + " ";
    text += "and so on.\n";
  }
  return TextSource(text);
}

class FourCharacters final : public TokenCounter {
 public:
  std::int64_t count(std::string_view text) const override { return text.size() / 4; }
};

TEST(Task, EverySampleHoldsItsAnswersAndFillsItsLength) {
  const TextSource source = prose();
  const FourCharacters counter;
  for (const TaskEntry& row : task_table()) {
    const Sample s = make_sample(row, source, 6000, 3, 0, counter);
    EXPECT_LE(counter.count(s.context), 6000) << row.name;
    EXPECT_GE(counter.count(s.context), 5700) << row.name;
    EXPECT_GE(size32(s.questions), 1) << row.name;
    for (const Question& q : s.questions) {
      EXPECT_FALSE(q.answer.empty()) << row.name;
      EXPECT_TRUE(is_right(" " + q.answer + "\n", q));
      EXPECT_FALSE(is_right(q.answer + "x", q));
    }
  }
}

TEST(Task, TheSameSeedGivesTheSameSampleAndAnotherNumberAnother) {
  const TextSource source = prose();
  const FourCharacters counter;
  for (const TaskEntry& row : task_table()) {
    const Sample a = make_sample(row, source, 5000, 3, 7, counter), b = make_sample(row, source, 5000, 3, 7, counter);
    EXPECT_EQ(a.context, b.context) << row.name;
    EXPECT_NE(a.context, make_sample(row, source, 5000, 3, 8, counter).context) << row.name;
    EXPECT_NE(a.context, make_sample(row, source, 5000, 4, 7, counter).context) << row.name;
  }
}

TEST(Task, FactsStandWhereTheirDepthSays) {
  const TextSource source = prose();
  const Sample s = make_sample(find_task("number"), source, 6000, 1, 0, FourCharacters());
  std::set<std::string> answers;
  for (const Question& q : s.questions) {
    const std::size_t at = s.context.find(q.answer + ".");
    ASSERT_NE(at, std::string::npos) << q.answer;
    EXPECT_NEAR(q.depth, static_cast<double>(at) / static_cast<double>(s.context.size()), 0.01);
  }
}

TEST(Task, ChainsCanBeFollowed) {
  const Sample s = make_sample(find_task("chain"), prose(), 6000, 1, 0, FourCharacters());
  for (const Question& q : s.questions) {
    std::string name = q.text.substr(14, q.text.find(',') - 14);
    std::string followed;
    while (followed.size() < q.answer.size()) {
      const std::string link = fmt::format("After {} comes ", name);
      const std::size_t at = s.context.find(link);
      ASSERT_NE(at, std::string::npos) << name;
      name = s.context.substr(at + link.size(), s.context.find('.', at) - at - link.size());
      followed += (followed.empty() ? "" : " ") + name;
    }
    EXPECT_EQ(followed, q.answer);
  }
}

TEST(Task, ErrorsNameWhatIsWrong) {
  const auto message = [](auto&& f) {
    try {
      f();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message([] { find_task("numbr"); }), HasSubstr("number, password"));
  EXPECT_THAT(message([] { TextSource("short"); }), HasSubstr("at least 20000"));
  EXPECT_THAT(message([] { make_sample(find_task("list"), prose(), 40, 1, 0, FourCharacters()); }),
              HasSubstr("longer context"));
}

CellRecord record(std::string method, std::int64_t sample, std::vector<bool> right) {
  CellRecord r{.task = "number", .length = 4096, .sample = sample, .method = std::move(method)};
  for (bool ok : right) r.answers.push_back({.expected = "1", .answer = ok ? "1" : "2", .depth = 0.5, .right = ok});
  return r;
}

// Paired by hand: differences 0, 0, -100, 0 against full.
TEST(Report, PairsWithFull) {
  const auto cells = summarise({record("full", 0, {true, true}), record("quest b512", 0, {true, true}),
                                record("full", 1, {true, false}), record("quest b512", 1, {false, false})});
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].right, 3);
  EXPECT_EQ(cells[1].n, 4);
  EXPECT_DOUBLE_EQ(cells[1].exact(), 50.0);
  EXPECT_EQ(cells[1].n_pairs, 4);
  EXPECT_DOUBLE_EQ(cells[1].difference, -25.0);
  EXPECT_NEAR(cells[1].half_width, 1.96 * 50.0 / 2.0, 1e-9);  // deviation 50 over 4 pairs
}

TEST(Report, ARecordComesBackFromItsLine) {
  CellRecord r = record("freekv b512", 3, {true, false});
  r.cost = {.steps = 7,
            .seconds = 0.5,
            .attended = 11,
            .attended_heads = 2,
            .kv_bytes = 99,
            .index_bytes_read = 5,
            .checks = 4,
            .corrections = 1,
            .selected = 8,
            .replaced = 3,
            .selections = 6,
            .reused = 9,
            .audit = {.samples = 2, .recall = 1.5, .mass = 1.25, .error = 0.5}};
  const CellRecord back = record_from_json(nlohmann::json::parse(to_json(r).dump()));
  EXPECT_EQ(to_json(back), to_json(r));
  EXPECT_THROW(record_from_json(nlohmann::json{{"task", 3}}), Error);
}

TEST(Report, ThePlotNamesEveryMethod) {
  CellRecord a = record("full", 0, {true}), b = record("quest b512", 0, {true});
  a.cost = {.steps = 1, .kv_bytes = 1 << 20};
  b.cost = {.steps = 1, .kv_bytes = 1 << 16};
  const std::string svg = plot_svg(summarise({a, b}));
  EXPECT_THAT(svg, HasSubstr("quest b512"));
  EXPECT_THAT(cut_texts(svg), ::testing::IsEmpty());
  EXPECT_THAT(svg, ::testing::StartsWith("<svg"));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
}

}  // namespace
}  // namespace mneme::eval

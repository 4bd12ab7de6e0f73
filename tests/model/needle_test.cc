// The shipped model finds what a document hides: the whole path from file and text to the exact answer.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/model/needle_runner.h"

namespace mneme {
namespace {

using Questions = std::vector<std::pair<NeedleKind, std::size_t>>;  // kind, characters of the document

void expect_exact(DType kv_dtype, const Questions& questions) {
  ThreadPool threads(available_cpus());
  NeedleRunner needle(needle_path(), kv_dtype, {.pool = &threads}, 8192);
  NeedleMaker maker(NeedleMaker::made_up_prose(40000, 1), 2026);
  for (const auto& [kind, n_chars] : questions) {
    const NeedlePrompt prompt = maker.make(kind, n_chars);
    const NeedleAnswer answer = needle.answer(prompt);
    EXPECT_EQ(answer.text, prompt.answer)
        << prompt.kind << ", " << answer.prompt_tokens << " tokens: " << prompt.question;
    EXPECT_TRUE(answer.ended) << prompt.kind;
  }
}

TEST(NeedleTest, AnswersExactly) {
  expect_exact(DType::kBF16, {{NeedleKind::kNumber, 4000},
                              {NeedleKind::kWhere, 4000},
                              {NeedleKind::kRegister, 4000},
                              {NeedleKind::kNumber, 14000}});
}

TEST(NeedleTest, AnswersExactlyWithKeysAndValuesInF16) {
  expect_exact(DType::kF16, {{NeedleKind::kNumber, 4000}, {NeedleKind::kRegister, 4000}});
}

}  // namespace
}  // namespace mneme

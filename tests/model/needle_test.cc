// The shipped model finds what a document hides: the whole path from file and text to the exact answer.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/model/needle_runner.h"

namespace mneme {
namespace {

// What the sanitizers watch takes a hundred times as long: shorter documents, the same questions.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kShort = 1200, kLong = 4500;
#else
constexpr std::size_t kShort = 4000, kLong = 14000;
#endif

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
  expect_exact(DType::kBF16, {{NeedleKind::kNumber, kShort},
                              {NeedleKind::kWhere, kShort},
                              {NeedleKind::kRegister, kShort},
                              {NeedleKind::kNumber, kLong}});
}

TEST(NeedleTest, AnswersExactlyWithKeysAndValuesInF16) {
  expect_exact(DType::kF16, {{NeedleKind::kNumber, kShort}, {NeedleKind::kRegister, kShort}});
}

TEST(NeedleTest, AnswersExactlyWithKeysAndValuesIn8Bits) {
  expect_exact(DType::kInt8, {{NeedleKind::kNumber, kShort}, {NeedleKind::kRegister, kShort}});
  expect_exact(DType::kFp8, {{NeedleKind::kNumber, kShort}, {NeedleKind::kRegister, kShort}});
}

}  // namespace
}  // namespace mneme

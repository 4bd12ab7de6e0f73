// Questions as tokens, with the tokenizer of the shipped model.
#include "apps/eval/runs/suite_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/eval/prose/text_source.h"
#include "src/formats/checkpoint.h"

namespace mneme::eval {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

struct Shipped {
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(Checkpoint::open(MNEME_MODEL_FILE)->tokenizer());
  ChatFormat chat = ChatFormat::detect(*tokenizer);
};

SuiteItem item_of(const std::string& document, const std::string& question, Framing framing) {
  SuiteItem item;
  item.prompt = document + question;
  item.question_bytes = question.size();
  item.framing = framing;
  return item;
}

std::vector<std::int32_t> whole(const SuitePrompt& p) {
  std::vector<std::int32_t> all = p.document;
  all.insert(all.end(), p.question.begin(), p.question.end());
  return all;
}

// The boundary stands in the middle of a word: the tokens must be those of the unbroken text.
TEST(SuitePrompt, TokensAreThoseOfTheWholePrompt) {
  const Shipped m;
  const std::string text = "The house of Kelona stands in Barumi.\n\nWhere does the house of Kelona stand?";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const SuitePrompt turn =
        suite_prompt(item_of(text.substr(0, cut), text.substr(cut), Framing::kTurn), *m.tokenizer, m.chat, 1000);
    EXPECT_EQ(whole(turn), m.chat.user_turn({.document = {}, .question = text, .system = {}}, true)) << cut;
    EXPECT_FALSE(turn.question.empty());
    const SuitePrompt plain =
        suite_prompt(item_of(text.substr(0, cut), text.substr(cut), Framing::kPlain), *m.tokenizer, m.chat, 1000);
    EXPECT_EQ(whole(plain), m.tokenizer->encode(text, {.add_bos = true})) << cut;
  }
}

TEST(SuitePrompt, TruncationLeavesOutTheMiddleAndKeepsTheQuestion) {
  const Shipped m;
  const std::string document(TextSource::generated().text().substr(0, 20000)), question = "\n\nWhat comes last?";
  const SuitePrompt p = suite_prompt(item_of(document, question, Framing::kPlain), *m.tokenizer, m.chat, 500);
  EXPECT_TRUE(p.truncated);
  const std::string text = m.tokenizer->decode(whole(p));
  EXPECT_THAT(text, StartsWith(document.substr(0, 200)));
  EXPECT_THAT(text, EndsWith(document.substr(document.size() - 200) + question));
  EXPECT_NEAR(static_cast<double>(whole(p).size()), 501, 4) << "the seam may encode differently";
  EXPECT_THAT(m.tokenizer->decode(p.question), EndsWith(question));
  EXPECT_LE(p.question.size(), 10u);
  EXPECT_EQ(without_middle(question, *m.tokenizer, 500), question);
}

TEST(SuitePrompt, AnswersBeginWithTheirPrefix) {
  const Shipped m;
  SuiteItem item = item_of("A text.", "\nQ?", Framing::kTurn);
  item.answer_prefix = " Answer: the words are";
  const SuitePrompt p = suite_prompt(item, *m.tokenizer, m.chat, 100);
  EXPECT_THAT(m.tokenizer->decode(p.question), EndsWith("Answer: the words are"));
  item.answer_prefix.clear();
  const SuitePrompt without = suite_prompt(item, *m.tokenizer, m.chat, 100);
  EXPECT_EQ(p.document, without.document);
  EXPECT_TRUE(std::equal(without.question.begin(), without.question.end(), p.question.begin()));
}

}  // namespace
}  // namespace mneme::eval

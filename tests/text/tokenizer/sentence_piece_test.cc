#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "src/base/error.h"
#include "src/formats/tokenizer_check.h"
#include "src/text/tokenizer/tokenizer.h"
#include "tests/text/tokenizer/test_data.h"

namespace mneme {
namespace {

using Ids = std::vector<TokenId>;
constexpr TokenId kFirst = 259;  // the first token after <unk>, <s>, </s> and the bytes

Ids encode(const Tokenizer& t, std::string_view text, bool parse_special = false) {
  return t.encode(text, {.parse_special = parse_special, .add_bos = false});
}

Ids bytes(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(3 + static_cast<unsigned char>(c));
  return ids;
}

TEST(SentencePiece, TheHighestScoreMergesFirst) {
  TokenizerData data =
      test::sentence_piece({"▁", "a", "b", "c", "bc", "ab", "abc", "▁a"}, {0, 0, 0, 0, -1, -2, -3, -4});
  data.add_space_prefix = false;
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(encode(*t, "abc"), (Ids{kFirst + 6}));
  EXPECT_EQ(encode(*t, "abab"), (Ids{kFirst + 5, kFirst + 5}));
  EXPECT_EQ(encode(*t, "a a"), (Ids{kFirst + 1, kFirst + 7}));
}

TEST(SentencePiece, EqualScoresMergeLeftmostFirst) {
  TokenizerData data = test::sentence_piece({"a", "b", "ab", "ba"}, {0, 0, -1, -1});
  data.add_space_prefix = false;
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(encode(*t, "aba"), (Ids{kFirst + 2, kFirst}));
  EXPECT_EQ(encode(*t, "bab"), (Ids{kFirst + 3, kFirst + 1}));
}

TEST(SentencePiece, ASpaceIsPutBeforeTheTextAndStrippedAgain) {
  const auto t = Tokenizer::make(test::sentence_piece({"▁", "a", "▁a"}, {0, 0, -1}));
  EXPECT_EQ(encode(*t, "a a"), (Ids{kFirst + 2, kFirst + 2}));
  EXPECT_EQ(encode(*t, " a"), (Ids{kFirst, kFirst + 2}));
  EXPECT_EQ(t->decode(encode(*t, "a a")), "a a");
  EXPECT_EQ(t->decode(encode(*t, " a")), " a");
  EXPECT_EQ(encode(*t, ""), Ids{});
  EXPECT_EQ(t->encode("a", {.continues = true}), (Ids{kFirst + 1}));
  EXPECT_EQ(t->encode("a", {.add_bos = true}), (Ids{1, kFirst + 2}));
  EXPECT_EQ(encode(*t, "a</s>a", true), (Ids{kFirst + 2, 2, kFirst + 2}));
}

TEST(SentencePiece, CharactersWithoutATokenBecomeTheirBytes) {
  TokenizerData data = test::sentence_piece({"▁", "a"});
  data.add_space_prefix = false;
  const auto t = Tokenizer::make(data);
  Ids expected = bytes("日\xFF\xE6\x97");
  expected.push_back(kFirst + 1);
  EXPECT_EQ(encode(*t,
                   "日\xFF\xE6\x97"
                   "a"),
            expected);
  EXPECT_EQ(t->decode(expected),
            "日\xFF\xE6\x97"
            "a");
}

TEST(SentencePiece, WithoutByteTokensARunIsOneUnknown) {
  TokenizerData data = test::sentence_piece({"▁", "a"});
  data.add_space_prefix = false;
  std::fill(data.types.begin() + 3, data.types.begin() + 259, TokenType::kUnused);
  EXPECT_EQ(encode(*Tokenizer::make(data), "日本a日"), (Ids{0, kFirst + 1, 0}));
  data.unk.reset();
  EXPECT_THROW(encode(*Tokenizer::make(data), "日"), Error);
}

TEST(SentencePiece, ByteTokensAndControlTokensInTextAreText) {
  const auto t = Tokenizer::make(test::sentence_piece({"▁", "<", "s", ">", "<s", "</", "0", "x", "4", "1", "<0"}));
  for (const char* text : {"<s>", "</s>", "<0x41>", "<unk>"}) {
    const Ids ids = encode(*t, text);
    EXPECT_EQ(t->decode(ids), text);
    for (const TokenId id : ids) EXPECT_FALSE(id < 3) << text;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 3 + 0x41), 0) << text;
  }
  EXPECT_EQ(encode(*t, "<s>", true), (Ids{1}));
}

TEST(SentencePiece, RandomVocabulariesAgreeWithTheNaiveMerges) {
  std::mt19937 random(9);
  const std::vector<std::string> letters = {"a", "b", "c", "ä", "日", " ", "▁", "\xFF", "x"};
  for (int round = 0; round < 60; ++round) {
    TokenizerData data = test::random_sentence_piece(random, 5 + random() % 60, round % 2 == 0);
    data.add_space_prefix = round % 3 == 0;
    const auto t = Tokenizer::make(data);
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (std::size_t n = random() % 120; n > 0; --n) text += letters[random() % letters.size()];
      ASSERT_EQ(encode(*t, text), test::naive_sentence_piece(data, text)) << "round " << round << ": " << text;
    }
  }
}

// Words are merged one by one only where no token spans a space.
TEST(SentencePiece, TokensThatReachAcrossASpace) {
  TokenizerData data = test::sentence_piece({"▁", "a", "▁a", "a▁", "a▁a"}, {0, 0, -3, -1, -2});
  data.add_space_prefix = false;
  EXPECT_EQ(encode(*Tokenizer::make(data), "a a a"), (Ids{kFirst + 3, kFirst + 4}));
}

TEST(SentencePiece, EveryTextComesBack) {
  std::mt19937 random(10);
  for (int round = 0; round < 200; ++round) {
    TokenizerData data = test::random_sentence_piece(random, 40, false);
    test::add_token(data, "ab▁c", TokenType::kUserDefined);
    data.add_space_prefix = round % 2 == 0;
    const auto t = Tokenizer::make(data);
    const std::string text = test::random_text(random, random() % 200);
    ASSERT_EQ(t->decode(encode(*t, text)), text);
  }
}

TEST(SentencePiece, UserDefinedTokensAreFoundAlways) {
  TokenizerData data = test::sentence_piece({"▁", "a", "b"});
  const TokenId two = test::add_token(data, "▁▁", TokenType::kUserDefined);
  data.add_space_prefix = false;
  EXPECT_EQ(encode(*Tokenizer::make(data), "a  b"), (Ids{kFirst + 1, two, kFirst + 2}));
}

// tokenizer.json has merges instead of scores.
TEST(SentencePiece, MergesByRankWhereTheFileHasMerges) {
  TokenizerData data = test::sentence_piece({"▁", "a", "b", "ab", "▁a"});
  data.scores.clear();
  data.merges = {{"▁", "a"}, {"a", "b"}};
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(encode(*t, "ab b"), (Ids{kFirst + 4, kFirst + 2, kFirst, kFirst + 2}));
  data.merges.emplace_back("b", "zz");
  EXPECT_THROW(Tokenizer::make(data), Error);
}

struct SpaceCase {
  SpaceRule rule;
  bool split;
  std::vector<Ids> ids;
};

// Ids of `tokenizers` 0.23.3 for the same tokenizer.json; compare_with_tokenizers.py compares many more.
TEST(SentencePiece, MarksAreThoseOfTheTokenizersLibrary) {
  TokenizerData data = test::sentence_piece({"▁", "a", "b", "▁a", "ab", "▁ab"});
  data.merges = {{"▁", "a"}, {"a", "b"}, {"▁", "ab"}};
  test::add_token(data, "[I]", TokenType::kControl);
  for (const char* token : {"<t>", "<n>", "<l>", "<r>"}) test::add_token(data, token, TokenType::kUserDefined);
  data.added_flags = {{267, kAddedNormalized}, {268, kAddedLstrip}, {269, kAddedRstrip}};
  const std::vector<std::string> texts = {"a", " a", "[I] a[I]a", "a<t>a", "<n>a", "b<n> a", "a  <l>a<r>  b", "  a"};
  const std::vector<Ids> always = {{262},
                                   {262},
                                   {265, 262, 265, 262},
                                   {262, 266, 262},
                                   {267, 262},
                                   {259, 261, 267, 262},
                                   {262, 268, 262, 269, 259, 261},
                                   {259, 262}};
  const std::vector<Ids> never = {{260},      {262},           {265, 262, 265, 260},      {260, 266, 260},
                                  {267, 260}, {261, 267, 262}, {260, 268, 260, 269, 261}, {259, 262}};
  const std::vector<SpaceCase> cases = {{SpaceRule::kAlways, false, always},
                                        {SpaceRule::kAlways, true, always},
                                        {SpaceRule::kFirst,
                                         false,
                                         {{262},
                                          {262},
                                          {265, 262, 265, 260},
                                          {262, 266, 260},
                                          {267, 260},
                                          {259, 261, 267, 262},
                                          {262, 268, 260, 269, 261},
                                          {259, 262}}},
                                        {SpaceRule::kNever, false, never},
                                        {SpaceRule::kPrepend,
                                         false,
                                         {{262},
                                          {259, 262},
                                          {265, 259, 262, 265, 262},
                                          {262, 266, 262},
                                          {267, 260},
                                          {259, 261, 63, 113, 65, 262},
                                          {262, 268, 262, 269, 259, 261},
                                          {259, 259, 262}}},
                                        {SpaceRule::kReplace, false, never}};
  for (const SpaceCase& c : cases) {
    data.space_rule = c.rule;
    data.split_at_marks = c.split;
    const auto t = Tokenizer::make(data);
    for (std::size_t i = 0; i < texts.size(); ++i)
      EXPECT_EQ(encode(*t, texts[i], true), c.ids[i]) << space_rule_name(c.rule) << " \"" << texts[i] << '"';
  }
  data.space_rule = SpaceRule::kFirst;
  EXPECT_EQ(Tokenizer::make(data)->encode("a", {.after_tokens = true}), (Ids{260}));
}

TEST(SentencePiece, IdsWithoutATokenHaveNoTextAndUnusedTokensHave) {
  TokenizerData data = test::sentence_piece({"a"});
  const TokenId padding = test::add_token(data, "[PAD260]", TokenType::kAbsent);
  const TokenId unused = test::add_token(data, "<unused0>", TokenType::kUnused);
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(t->decode(Ids{kFirst, padding, unused}, true), "a<unused0>");
  EXPECT_FALSE(t->is_token(padding));
  EXPECT_TRUE(t->is_token(unused));
  EXPECT_EQ(t->find("[PAD260]"), std::nullopt);
}

TEST(SentencePiece, BadDataIsAnError) {
  TokenizerData data = test::sentence_piece({"a"});
  data.scores.pop_back();
  EXPECT_THROW(Tokenizer::make(data), Error);
  data = test::sentence_piece({"a"});
  data.scores.back() = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(Tokenizer::make(data), Error);
  for (const char* text : {"<0x4>", "<0x4g>", "<0x411>", "x", ""}) {
    data = test::sentence_piece({"a"});
    data.tokens[10] = text;
    EXPECT_THROW(Tokenizer::make(data), Error) << text;
  }
}

TEST(SentencePiece, AMillionLettersAreFast) {
  const auto t = Tokenizer::make(test::sentence_piece({"▁", "a", "aa", "aaaa"}));
  EXPECT_EQ(encode(*t, std::string(1'000'000, 'a')).size(), 250'001u);
}

}  // namespace
}  // namespace mneme

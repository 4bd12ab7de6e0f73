#include <gtest/gtest.h>

#include <algorithm>

#include <random>
#include <thread>

#include "src/base/error.h"
#include "src/text/tokenizer/pretokenizer.h"
#include "src/text/tokenizer/tokenizer.h"
#include "tests/text/tokenizer/test_data.h"

namespace mneme {
namespace {

using Ids = std::vector<TokenId>;

Ids encode(const Tokenizer& t, std::string_view text, bool parse_special = false) {
  return t.encode(text, {.parse_special = parse_special, .add_bos = false});
}

ErrorKind kind_of_error(const TokenizerData& data) {
  try {
    Tokenizer::make(data);
  } catch (const Error& e) {
    return e.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kDevice;
}

std::string message_of_error(const TokenizerData& data) {
  try {
    Tokenizer::make(data);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(ByteBpe, MergesByRank) {
  // "abc" is reached through "bc", which ranks before "ab".
  const auto t = Tokenizer::make(test::byte_bpe({{"b", "c"}, {"a", "b"}, {"a", "bc"}}));
  EXPECT_EQ(encode(*t, "abc"), (Ids{258}));
  EXPECT_EQ(encode(*t, "abab"), (Ids{257, 257}));
  EXPECT_EQ(encode(*t, "aab bc"), (Ids{'a', 257, ' ', 256}));
  EXPECT_EQ(encode(*t, ""), Ids{});
}

TEST(ByteBpe, RandomVocabulariesAgreeWithTheNaiveMerges) {
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    TokenizerData data = test::random_byte_bpe(random, 1 + random() % 60, "ab c\xC3\xA9");
    data.pre.clear();  // no pre-tokenizer: pieces of every length
    const auto t = Tokenizer::make(data);
    for (int i = 0; i < 20; ++i) {
      const std::string valid = test::random_text(random, random() % 90);
      std::string text;
      for (const char c : valid) {
        if (static_cast<unsigned char>(c) < 0x80) text += c;
      }
      Ids expected = text.empty() ? Ids{} : test::naive_byte_bpe_piece(data, text);
      ASSERT_EQ(encode(*t, text), expected) << "round " << round << ": " << text;
    }
  }
}

TEST(ByteBpe, RepeatedPiecesGiveTheSameIds) {
  std::mt19937 random(6);
  const TokenizerData data = test::random_byte_bpe(random, 200, "abcdefgh ");
  const auto t = Tokenizer::make(data);
  const Pretokenizer pretokenizer(Pretokenizer::preset("gpt-2").patterns);
  Pretokenizer::Scratch scratch(pretokenizer);
  std::string text;
  for (int i = 0; i < 30'000; ++i) text += " abcdefgh,\n"[random() % 11];
  Ids expected;
  pretokenizer.split(text, scratch, [&](std::string_view piece) {
    const Ids ids = test::naive_byte_bpe_piece(data, piece);
    expected.insert(expected.end(), ids.begin(), ids.end());
  });
  EXPECT_EQ(encode(*t, text), expected);
}

TEST(ByteBpe, EveryByteStringComesBack) {
  std::mt19937 random(7);
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "smollm", "default"}) {
    TokenizerData data = test::random_byte_bpe(random, 60, "ab \xE2\x80\x9C\xFF");
    data.pre = pre;
    test::add_token(data, "<|end|>", TokenType::kControl);
    test::add_token(data, "ab\xE2", TokenType::kUserDefined);
    const auto t = Tokenizer::make(data);
    for (int i = 0; i < 150; ++i) {
      const std::string bytes =
          i % 2 == 0 ? test::random_bytes(random, random() % 300) : test::random_text(random, random() % 300);
      ASSERT_EQ(t->decode(encode(*t, bytes)), bytes) << pre;
      ASSERT_EQ(t->decode(encode(*t, bytes + "<|end|>" + bytes, true), true), bytes + "<|end|>" + bytes);
    }
  }
}

TEST(ByteBpe, IgnoreMergesTakesAPieceThatIsATokenWhole) {
  TokenizerData data = test::byte_bpe({{"a", "b"}});
  const TokenId whole = test::add_token(data, "abab", TokenType::kNormal);
  EXPECT_EQ(encode(*Tokenizer::make(data), "abab"), (Ids{256, 256}));
  data.ignore_merges = true;
  EXPECT_EQ(encode(*Tokenizer::make(data), "abab"), (Ids{whole}));
  data.ignore_merges = false;
  data.pre = "llama-bpe";  // the name implies it
  EXPECT_EQ(encode(*Tokenizer::make(data), "abab ababa"), (Ids{whole, ' ', 256, 256, 'a'}));
}

TEST(ByteBpe, ControlTokensInTextAreTextUnlessAsked) {
  TokenizerData data = test::byte_bpe({{"<", "|"}});
  const TokenId end = test::add_token(data, "<|end|>", TokenType::kControl);
  const auto t = Tokenizer::make(data);
  const Ids plain = encode(*t, "a<|end|>b");
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
  EXPECT_EQ(t->decode(plain), "a<|end|>b");
  EXPECT_EQ(encode(*t, "a<|end|>b", true), (Ids{'a', end, 'b'}));
  EXPECT_EQ(t->decode(Ids{'a', end}), "a");
  EXPECT_EQ(t->decode(Ids{'a', end}, true), "a<|end|>");
}

// A file may contain merges that spell a control token; text must not become it even then.
TEST(ByteBpe, NoMergeMakesAControlToken) {
  TokenizerData data = test::byte_bpe({{"<", "e"}, {"<e", ">"}});
  data.types[257] = TokenType::kControl;
  data.pre.clear();
  data.ignore_merges = true;
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(encode(*t, "<e>"), (Ids{256, '>'}));
}

TEST(ByteBpe, TurnMarkersThatAFileCallsOrdinaryAreControlAllTheSame) {
  for (const TokenType type : {TokenType::kNormal, TokenType::kUserDefined}) {
    TokenizerData data = test::byte_bpe({});
    const TokenId mark = test::add_token(data, "<|im_start|>", type), end = test::add_token(data, "<|im_end|>", type);
    const auto t = Tokenizer::make(data);
    EXPECT_TRUE(t->is_control(mark) && t->is_control(end) && t->is_end(end) && !t->is_end(mark));
    EXPECT_EQ(encode(*t, "<|im_start|>").size(), 12u);
  }
}

TEST(ByteBpe, HarmonyEndsAnswersByReturnAndCallAndMessagesByEnd) {
  TokenizerData data = test::byte_bpe({});
  const TokenId end = test::add_token(data, "<|end|>", TokenType::kControl);
  EXPECT_TRUE(Tokenizer::make(data)->is_end(end)) << "of models without the others";
  const TokenId back = test::add_token(data, "<|return|>", TokenType::kControl),
                call = test::add_token(data, "<|call|>", TokenType::kControl);
  const auto t = Tokenizer::make(data);
  EXPECT_TRUE(t->is_end(back) && t->is_end(call) && !t->is_end(end) && t->is_control(end));
}

TEST(ByteBpe, UserDefinedTokensAreFoundAlwaysLeftmostThenLongest) {
  TokenizerData data = test::byte_bpe({});
  const TokenId x = test::add_token(data, "xy", TokenType::kUserDefined);
  const TokenId xyz = test::add_token(data, "xyz", TokenType::kUserDefined);
  const TokenId yzzz = test::add_token(data, "yzzz", TokenType::kUserDefined);
  test::add_token(data, "", TokenType::kUserDefined);
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(encode(*t, "axyzzz"), (Ids{'a', xyz, 'z', 'z'}));
  EXPECT_EQ(encode(*t, "xyyzzz"), (Ids{x, yzzz}));
  EXPECT_EQ(encode(*t, "xxy"), (Ids{'x', x}));
}

TEST(ByteBpe, BosIsAddedWhereTheModelWantsIt) {
  TokenizerData data = test::byte_bpe({});
  data.bos = test::add_token(data, "<|bos|>", TokenType::kControl);
  EXPECT_EQ(Tokenizer::make(data)->encode("a", {.add_bos = true}), (Ids{'a'}));
  data.add_bos = true;
  EXPECT_EQ(Tokenizer::make(data)->encode("a", {.add_bos = true}), (Ids{256, 'a'}));
  EXPECT_EQ(Tokenizer::make(data)->encode("a", {}), (Ids{'a'}));
}

TEST(ByteBpe, PrefixSpace) {
  TokenizerData data = test::byte_bpe({{" ", "a"}});
  data.pre_add_prefix_space = true;
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(encode(*t, "a a"), (Ids{256, 256}));
  EXPECT_EQ(encode(*t, " a"), (Ids{256}));
  EXPECT_EQ(t->encode("a", {.continues = true}), (Ids{'a'}));
}

TEST(ByteBpe, BytesWithoutATokenAreUnknownOrAnError) {
  TokenizerData data = test::byte_bpe({});
  data.types['x'] = TokenType::kUnused;
  try {
    encode(*Tokenizer::make(data), "axb");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kRequest);
    EXPECT_NE(std::string(e.what()).find("0x78"), std::string::npos) << e.what();
  }
  data.unk = test::add_token(data, "<unk>", TokenType::kUnknown);
  EXPECT_EQ(encode(*Tokenizer::make(data), "axb"), (Ids{'a', 256, 'b'}));
  data.eos = data.unk;  // as in GPT-2's files: text must not end a turn
  EXPECT_THROW(encode(*Tokenizer::make(data), "axb"), Error);
}

TEST(ByteBpe, BadDataIsNamed) {
  TokenizerData data = test::byte_bpe({{"a", "b"}});
  data.merges.emplace_back("ab", "zz");
  EXPECT_EQ(kind_of_error(data), ErrorKind::kFormat);
  EXPECT_NE(message_of_error(data).find("merge 1 (\"ab\" and \"zz\")"), std::string::npos) << message_of_error(data);
  data = test::byte_bpe({});
  data.pre = "klingon";
  EXPECT_EQ(kind_of_error(data), ErrorKind::kUnsupported);
  data = test::byte_bpe({});
  data.types.pop_back();
  EXPECT_EQ(kind_of_error(data), ErrorKind::kFormat);
  data = test::byte_bpe({});
  data.eog = {3, 256};
  EXPECT_EQ(kind_of_error(data), ErrorKind::kFormat);
  data.eog = {-1};
  EXPECT_EQ(kind_of_error(data), ErrorKind::kFormat);
  EXPECT_EQ(kind_of_error({}), ErrorKind::kFormat);
}

TEST(ByteBpe, IdsOutsideOfTheVocabularyStandForNothing) {
  const auto t = Tokenizer::make(test::byte_bpe({}));
  EXPECT_EQ(t->decode(Ids{'a', -1, 256, 1 << 30, 'b'}), "ab");
  EXPECT_FALSE(t->is_end(-1) || t->is_end(256) || t->is_control(-5) || t->is_control(1 << 30));
}

TEST(ByteBpe, IdsWithoutATokenHaveNoTextAndUnusedTokensHave) {
  TokenizerData data = test::byte_bpe({});
  const TokenId padding = test::add_token(data, "[PAD256]", TokenType::kAbsent);
  const TokenId unused = test::add_token(data, "<unused0>", TokenType::kUnused);
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(t->decode(Ids{'a', padding, unused}, true), "a<unused0>");
  StreamDecoder stream(*t, true);
  EXPECT_EQ(stream.push(padding) + stream.finish(), "");
  EXPECT_FALSE(t->is_token(padding) || t->is_token(-1) || t->is_token(1000));
  EXPECT_TRUE(t->is_token(unused));
  EXPECT_EQ(t->find("[PAD256]"), std::nullopt);
}

TEST(ByteBpe, AddedTokensTakeTheWhiteSpaceOfTheirFlags) {
  TokenizerData data = test::byte_bpe({});
  for (const char* token : {"<l>", "<r>", "<n>", "n>"}) test::add_token(data, token, TokenType::kUserDefined);
  data.added_flags = {{256, kAddedLstrip}, {257, kAddedRstrip}, {258, kAddedNormalized}};
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(encode(*t, "a \u2003<l> b"), (Ids{'a', 256, ' ', 'b'}));
  EXPECT_EQ(encode(*t, "a <r>\n b"), (Ids{'a', ' ', 257, 'b'}));
  EXPECT_EQ(encode(*t, "<r> <l>"), (Ids{257, 256}));
  EXPECT_EQ(encode(*t, "<n>"), (Ids{'<', 259})) << "those of normalised text are searched last";
}

// The token before takes the white space that this one begins with: both are found, as by the tokenizers library.
TEST(ByteBpe, AnAddedTokenMayBeginWithinTheWhiteSpaceOfAnother) {
  TokenizerData data = test::byte_bpe({});
  for (const char* token : {"<r>", " <y>"}) test::add_token(data, token, TokenType::kUserDefined);
  data.added_flags = {{256, kAddedRstrip}};
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(encode(*t, "<r> <y>b"), (Ids{256, 257, 'b'}));
  EXPECT_EQ(encode(*t, "<r>  <y>b"), (Ids{256, 257, 'b'}));
}

TEST(ByteBpe, ManyThreadsEncodeAtOnce) {
  std::mt19937 random(8);
  const auto t = Tokenizer::make(test::random_byte_bpe(random, 100, "abc d"));
  const std::string text = test::random_text(random, 20'000);
  const Ids expected = encode(*t, text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& ids : results) threads.emplace_back([&] { ids = encode(*t, text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : results) EXPECT_EQ(ids, expected);
}

}  // namespace
}  // namespace mneme

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "src/text/tokenizer/tokenizer.h"
#include "tests/text/tokenizer/test_data.h"

namespace mneme {
namespace {

using test::random_bytes;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Table 3-7 of the Unicode standard: byte ranges of well-formed characters, row by row.
struct Row {
  std::array<std::pair<int, int>, 4> bytes;
  std::size_t length;
};
const std::array<Row, 9> kRows = {{
    {{{{0x00, 0x7F}}}, 1},
    {{{{0xC2, 0xDF}, {0x80, 0xBF}}}, 2},
    {{{{0xE0, 0xE0}, {0xA0, 0xBF}, {0x80, 0xBF}}}, 3},
    {{{{0xE1, 0xEC}, {0x80, 0xBF}, {0x80, 0xBF}}}, 3},
    {{{{0xED, 0xED}, {0x80, 0x9F}, {0x80, 0xBF}}}, 3},
    {{{{0xEE, 0xEF}, {0x80, 0xBF}, {0x80, 0xBF}}}, 3},
    {{{{0xF0, 0xF0}, {0x90, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}}}, 4},
    {{{{0xF1, 0xF3}, {0x80, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}}}, 4},
    {{{{0xF4, 0xF4}, {0x80, 0x8F}, {0x80, 0xBF}, {0x80, 0xBF}}}, 4},
}};

// The whole string at once: at each position the longest match with the start of a row, a character if the row is
// complete and one U+FFFD if not; one byte if nothing matches.
std::string replace_invalid(std::string_view bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t longest = 0;
    bool complete = false;
    for (const Row& row : kRows) {
      std::size_t n = 0;
      while (n < row.length && at + n < bytes.size()) {
        const int byte = static_cast<unsigned char>(bytes[at + n]);
        if (byte < row.bytes[n].first || byte > row.bytes[n].second) break;
        ++n;
      }
      if (n > longest) longest = n, complete = n == row.length;
    }
    out += complete ? bytes.substr(at, longest) : kReplacement;
    at += std::max<std::size_t>(longest, 1);
  }
  return out;
}

bool is_valid(std::string_view text) {
  return replace_invalid(text) == text;
}

// One token per byte.
class ByteTokens {
 public:
  ByteTokens() {
    data_ = test::byte_bpe({});
    end_ = test::add_token(data_, "<|end|>", TokenType::kControl);
    tokenizer_ = Tokenizer::make(data_);
  }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  TokenId end() const { return end_; }
  std::vector<TokenId> ids(std::string_view bytes) const {
    std::vector<TokenId> out;
    for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
    return out;
  }

 private:
  TokenizerData data_;
  TokenId end_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// Text after each byte, joined with '|'.
std::string steps(std::string_view bytes) {
  const ByteTokens tokens;
  StreamDecoder decoder(tokens.tokenizer());
  std::string out;
  for (const TokenId id : tokens.ids(bytes)) out += decoder.push(id) + "|";
  return out + decoder.finish();
}

TEST(StreamDecoder, GivesWholeCharacters) {
  EXPECT_EQ(steps("aé"), "a||é|");
  EXPECT_EQ(steps("日"), "||日|");
  EXPECT_EQ(steps("😀"), "|||😀|");
}

TEST(StreamDecoder, ReplacesAsSoonAsItIsCertain) {
  const std::string r(kReplacement);
  EXPECT_EQ(steps("\xFF"), r + "|");
  EXPECT_EQ(steps("\x80"
                  "a"),
            r + "|a|");
  EXPECT_EQ(steps("\xC0\xAF"), r + "|" + r + "|");                              // overlong
  EXPECT_EQ(steps("\xE0\x80\xAF"), "|" + r + r + "|" + r + "|");                // overlong
  EXPECT_EQ(steps("\xED\xA0\x80"), "|" + r + r + "|" + r + "|");                // surrogate
  EXPECT_EQ(steps("\xF4\x90\x80\x80"), "|" + r + r + "|" + r + "|" + r + "|");  // past U+10FFFF
  EXPECT_EQ(steps("\xE6\x97"
                  "a"),
            "||" + r + "a|");
  EXPECT_EQ(steps("\xE6\x97\xE6\x97\xA5"), "||" + r + "||日|");
}

TEST(StreamDecoder, EndsAnIncompleteCharacter) {
  EXPECT_EQ(steps("a\xF0\x9F\x98"), "a||||" + std::string(kReplacement));
}

TEST(StreamDecoder, RandomBytesGiveWhatTheWholeStringGives) {
  std::mt19937 random(3);
  const ByteTokens tokens;
  const std::string_view leads =
      "\xC2\xE0\xE6\xED\xEF\xF0\xF1\xF4\x80\x90\xA0\xBF\x8F\x9F"
      "a";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = random_bytes(random, random() % 40);
    if (round % 2 == 0) {
      for (char& c : bytes) c = leads[random() % leads.size()];
    }
    StreamDecoder decoder(tokens.tokenizer());
    std::string streamed;
    for (const TokenId id : tokens.ids(bytes)) {
      const std::string text = decoder.push(id);
      ASSERT_TRUE(is_valid(text));
      streamed += text;
    }
    streamed += decoder.finish();
    ASSERT_EQ(streamed, replace_invalid(bytes)) << "round " << round;
  }
}

TEST(StreamDecoder, TokensOfSeveralBytesCutCharactersAnywhere) {
  std::mt19937 random(4);
  const std::string text = "Größe 日本語 😀😀 é";
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::size_t i = 0; i + 3 < text.size(); i += 2) {
    const std::pair<std::string, std::string> merge = {text.substr(i, 1), text.substr(i + 1, 1)};
    if (std::find(merges.begin(), merges.end(), merge) == merges.end()) merges.push_back(merge);
  }
  const auto tokenizer = Tokenizer::make(test::byte_bpe(merges));
  for (int round = 0; round < 200; ++round) {
    std::vector<TokenId> ids;
    std::string bytes;
    for (int i = 0; i < 12; ++i) {
      ids.push_back(static_cast<TokenId>(100 + random() % (156 + merges.size())));
      bytes += tokenizer->token_bytes(ids.back());
    }
    StreamDecoder decoder(*tokenizer);
    std::string streamed;
    for (const TokenId id : ids) streamed += decoder.push(id);
    ASSERT_EQ(streamed + decoder.finish(), replace_invalid(bytes));
  }
}

TEST(StreamDecoder, ControlTokensShowOnlyWhenAsked) {
  const ByteTokens tokens;
  StreamDecoder silent(tokens.tokenizer()), loud(tokens.tokenizer(), true);
  EXPECT_EQ(silent.push(tokens.end()), "");
  EXPECT_EQ(loud.push(tokens.end()), "<|end|>");
  EXPECT_EQ(silent.push(-1) + silent.push(1'000'000) + silent.finish(), "");
}

TEST(StreamDecoder, StripsTheFirstSpaceOfSentencePiece) {
  const auto tokenizer = Tokenizer::make(test::sentence_piece({"▁", "a", "▁a"}));
  const TokenId word = *tokenizer->find("▁a");
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(*tokenizer->bos()) + decoder.push(word), "a");
  EXPECT_EQ(decoder.push(word), " a");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(word), "a");
}

}  // namespace
}  // namespace mneme

#include "src/text/tokenizer/pretokenizer.h"

#include <gtest/gtest.h>

#include "src/base/error.h"

namespace mneme {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(const std::vector<std::string>& patterns, std::string_view text) {
  const Pretokenizer pretokenizer(patterns);
  Pretokenizer::Scratch scratch(pretokenizer);
  Pieces pieces;
  pretokenizer.split(text, scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

Pieces split_as(std::string_view name, std::string_view text) {
  return split(Pretokenizer::preset(name).patterns, text);
}

TEST(Pretokenizer, Gpt2) {
  EXPECT_EQ(split_as("gpt-2", "I'm sure  it's 1234, won't'S"),
            (Pieces{"I", "'m", " sure", " ", " it", "'s", " 1234", ",", " won", "'t", "'", "S"}));
  EXPECT_EQ(split_as("gpt-2", "a\n\n  b\t"), (Pieces{"a", "\n\n ", " b", "\t"}));
}

TEST(Pretokenizer, Llama3TakesThreeDigitsAndAnyCase) {
  EXPECT_EQ(split_as("llama-bpe", "It'S 12345.\n\n x"), (Pieces{"It", "'S", " ", "123", "45", ".\n\n", " x"}));
}

TEST(Pretokenizer, Qwen2TakesOneDigit) {
  EXPECT_EQ(split_as("qwen2", "a 123 $é日"), (Pieces{"a", " ", "1", "2", "3", " $", "é日"}));
}

// Marks go with letters: the second piece is an e and a combining accent.
TEST(Pretokenizer, Qwen35KeepsMarksWithLetters) {
  EXPECT_EQ(split_as("qwen35", "a 12 e\u0301t"), (Pieces{"a", " ", "1", "2", " e\u0301t"}));
  EXPECT_EQ(split_as("qwen2", "e\u0301t"), (Pieces{"e", "\u0301t"}));
}

TEST(Pretokenizer, TekkenCutsAtCapitals) {
  EXPECT_EQ(split_as("tekken", "HelloWorld ABCd/"), (Pieces{"Hello", "World", " ABCd", "/"}));
  EXPECT_EQ(split_as("gpt-4o", "HelloWorld I'll 12345 a/\n"),
            (Pieces{"Hello", "World", " I'll", " ", "123", "45", " a", "/\n"}));
}

TEST(Pretokenizer, GlmSeedAndHunyuan) {
  EXPECT_EQ(split_as("glm4", "It'S 12345.\n\n x"), split_as("llama-bpe", "It'S 12345.\n\n x"));
  EXPECT_EQ(split_as("seed-coder", "a 12.\n\nb"), (Pieces{"a", " ", "1", "2", ".", "\n\n", "b"}));
  EXPECT_EQ(split_as("hunyuan-dense", "Hi 12345日本語x.\n.abc"),
            (Pieces{"Hi", " ", "123", "45", "日本語", "x", ".\n", ".abc"}));
}

TEST(Pretokenizer, SeveralPatternsCutOneAfterTheOther) {
  EXPECT_EQ(split_as("starcoder", "a1234 b"), (Pieces{"a", "1", "2", "3", "4", " b"}));
  EXPECT_EQ(split({"b", "a+"}, "aabxa"), (Pieces{"aa", "b", "x", "a"}));
}

TEST(Pretokenizer, NoPatternLeavesTheTextWhole) {
  EXPECT_EQ(split({}, "a b"), (Pieces{"a b"}));
  EXPECT_EQ(split({}, ""), Pieces{});
}

TEST(Pretokenizer, WhatMatchesNothingIsAPieceToo) {
  EXPECT_EQ(split({"z"}, "aé"), (Pieces{"aé"}));
  EXPECT_EQ(split({"é"}, "aéb"), (Pieces{"a", "é", "b"}));
}

TEST(Pretokenizer, EmptyMatchesCutNothing) {
  EXPECT_EQ(split({"a*"}, "éaaé"), (Pieces{"é", "aa", "é"}));
  EXPECT_EQ(split({""}, "日本"), (Pieces{"日本"}));
  EXPECT_EQ(split({R"(\b)"}, "a b"), (Pieces{"a b"}));
  EXPECT_EQ(split({R"(a\Kb)"}, "xab"), (Pieces{"xa", "b"}));
}

// The JIT's stack is too small for this match; the interpreter takes over.
TEST(Pretokenizer, DeepMatchesSurvive) {
  const std::string text(200'000, 'a');
  EXPECT_EQ(split({"(?:a|b)*c|(?:(a)|b)+"}, text), (Pieces{text}));
}

TEST(Pretokenizer, LongRunsOfSpacesAreFast) {
  const std::string text = std::string(3'000'000, ' ') + "a";
  EXPECT_EQ(split_as("llama-bpe", text).size(), 2u);
}

std::string error_of(const std::vector<std::string>& patterns, std::string_view text = "") {
  try {
    split(patterns, text);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    return e.what();
  }
  return "no error";
}

TEST(Pretokenizer, BadPatternsAreNamed) {
  EXPECT_NE(error_of({"(a"}).find("(a"), std::string::npos);
  EXPECT_NE(error_of({R"(\C)"}).find("understood"), std::string::npos);
  EXPECT_NE(error_of({"\xFF"}).find("understood"), std::string::npos);
  EXPECT_NE(error_of({std::string(70'000, 'a')}).find("70000"), std::string::npos);
}

TEST(Pretokenizer, AnExplodingPatternEndsWithAnError) {
  EXPECT_NE(error_of({"(?:a+)+$"}, std::string(60, 'a') + "b").find("byte 0"), std::string::npos);
}

TEST(Pretokenizer, UnknownNamesAreAnErrorThatListsTheKnownOnes) {
  try {
    Pretokenizer::preset("klingon");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    for (const char* word : {"klingon", "gpt-2", "llama-bpe", "qwen2"}) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace mneme

#include "apps/eval/prose/prose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "apps/eval/prose/prose_grammar.h"
#include "apps/eval/prose/text_source.h"

namespace mneme::eval {
namespace {

std::vector<std::string> sentences_of(const std::string& text) {
  std::vector<std::string> sentences;
  std::string sentence;
  for (std::size_t i = 0; i < text.size(); ++i) {
    sentence += text[i];
    const bool end = (text[i] == '.' || text[i] == '"') && (i + 1 == text.size() || text[i + 1] == ' ');
    if (end || text[i] == '\n') {
      if (sentence.size() > 20) sentences.push_back(sentence);
      sentence.clear();
    }
  }
  return sentences;
}

TEST(Prose, IsPlainTextOfTheLengthAskedFor) {
  const std::string text = generated_prose(50000, 1);
  EXPECT_GE(text.size(), 50000u);
  EXPECT_LE(text.size(), 60000u);
  for (char c : text) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << int{c};
  EXPECT_EQ(text.find_first_of("{}_"), std::string::npos);
  EXPECT_EQ(text.find("  "), std::string::npos);
}

TEST(Prose, ALongerTextBeginsWithTheShorterAndAnotherSeedIsAnotherText) {
  const std::string text = generated_prose(20000, 1);
  EXPECT_EQ(generated_prose(20000, 1), text);
  EXPECT_TRUE(generated_prose(40000, 1).starts_with(text));
  EXPECT_NE(generated_prose(20000, 2).substr(0, 200), text.substr(0, 200));
}

TEST(Prose, HardlyEverSaysTheSameTwice) {
  const std::vector<std::string> all = sentences_of(generated_prose(400000, 1));
  ASSERT_GT(all.size(), 3000u);
  const std::set<std::string> different(all.begin(), all.end());
  EXPECT_GT(static_cast<double>(different.size()), 0.98 * static_cast<double>(all.size()));
}

TEST(Prose, ArticlesFitTheirWords) {
  const std::string text = generated_prose(200000, 3);
  std::smatch wrong;
  EXPECT_FALSE(std::regex_search(text, wrong, std::regex("\\b[Aa] [aeio][a-z]+"))) << wrong.str();
  EXPECT_FALSE(std::regex_search(text, wrong, std::regex("\\b[Aa]n [bcdfgklmnpqrstvwxyz][a-z]+"))) << wrong.str();
}

// Enough words that pairs of them make keys which hardly ever share a word.
TEST(Prose, HasManyWords) {
  const TextSource source = TextSource::generated();
  EXPECT_GE(source.text().size(), 400000u);
  Rng rng(1);
  std::set<std::string> words;
  for (int i = 0; i < 20000; ++i) words.insert(source.word(rng));
  EXPECT_GT(words.size(), 1200u);
}

TEST(Prose, NoSymbolIsMissingAndNoneIsUnused) {
  std::map<std::string, int> used{{"title", 1}, {"sentence", 1}};
  for (const Sentences& s : prose_sentences())
    for (std::string_view form : s.alternatives) {
      const std::string text(form);
      const std::regex symbol("\\{(a |s |\\^)?([a-z0-9]+)\\}");
      for (auto it = std::sregex_iterator(text.begin(), text.end(), symbol); it != std::sregex_iterator(); ++it)
        ++used[(*it)[2]];
    }
  std::set<std::string> known;
  for (const Sentences& s : prose_sentences()) known.insert(std::string(s.symbol));
  for (const Words& w : prose_words()) known.insert(std::string(w.symbol));
  for (const auto& [symbol, n] : used) EXPECT_TRUE(known.contains(symbol)) << symbol;
  for (const std::string& symbol : known) EXPECT_TRUE(used.contains(symbol)) << symbol;
}

}  // namespace
}  // namespace mneme::eval

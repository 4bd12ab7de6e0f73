// The sentences and words that generated prose is made of.
#pragma once

#include <span>
#include <string_view>

namespace mneme::eval {

// A symbol and what it may become. `{symbol}` in an alternative is replaced in turn; `{a symbol}` puts the article
// before it, `{s symbol}` makes a noun plural, `{^symbol}` begins with a capital letter. `{hero}`, `{friend}`, `{town}`
// and `{topic}` are chosen once an essay.
struct Sentences {
  std::string_view symbol;
  std::span<const std::string_view> alternatives;
};
// A symbol and single words, separated by blanks, any of which it may become; `_` stands for a blank within one.
struct Words {
  std::string_view symbol;
  std::string_view words;
};

std::span<const Sentences> prose_sentences();
std::span<const Words> prose_words();

}  // namespace mneme::eval

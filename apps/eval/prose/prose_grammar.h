// Sentences and words of generated prose.
#pragma once

#include <span>
#include <string_view>

namespace mneme::eval {

// A symbol and its alternatives. `{symbol}` in an alternative is expanded recursively; `{a symbol}` puts the article
// before it, `{s symbol}` makes a noun plural, `{^symbol}` begins with a capital letter. `{hero}`, `{friend}`, `{town}`
// and `{topic}` are drawn once per essay.
struct Sentences {
  std::string_view symbol;
  std::span<const std::string_view> alternatives;
};
// A symbol and its alternatives as words separated by spaces; `_` is a space within a word.
struct Words {
  std::string_view symbol;
  std::string_view words;
};

std::span<const Sentences> prose_sentences();
std::span<const Words> prose_words();

}  // namespace mneme::eval

// Prose to hide facts in, and words for names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/rng.h"

namespace mneme::eval {

class TextSource {
 public:
  // Plain UTF-8 text. Errors  kFormat: under 20,000 characters, or too few words.
  explicit TextSource(std::string text);
  // One or several files, joined. Errors  kFile, kFormat.
  static TextSource read(const std::vector<std::filesystem::path>& files);
  // 400,000 generated characters (apps/eval/prose/prose.h), always the same.
  static TextSource generated();

  // About n_chars of consecutive text from a random position, cut between words.
  std::string_view passage(std::size_t n_chars, Rng& rng) const;
  // The text from `begin` on (bytes), for perplexity.
  std::string_view text() const { return text_; }

  std::string word(Rng& rng) const;  // of the text, lower case, four to nine letters
  std::string key(Rng& rng) const { return word(rng) + "-" + word(rng); }
  // A made-up name of two to four syllables, capitalised.
  static std::string name(Rng& rng);
  // n digits, or four to seven.
  static std::string number(Rng& rng, int n = 0);

 private:
  std::string text_;
  std::vector<std::string> words_;
};

// Uniform in [low, high].
int draw_between(Rng& rng, int low, int high);

}  // namespace mneme::eval

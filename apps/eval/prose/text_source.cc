#include "apps/eval/prose/text_source.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "apps/eval/prose/prose.h"
#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

constexpr std::size_t kShortestText = 20000;
constexpr std::size_t kFewestWords = 200;

bool is_space(char c) {
  return c == ' ' || c == '\n';
}

std::vector<std::string> words_of(std::string_view text) {
  std::set<std::string> words;
  std::string word;
  bool plain = true;  // only lower-case ASCII letters so far: no names, no sentence beginnings
  const auto close = [&] {
    if (plain && word.size() >= 4 && word.size() <= 9) words.insert(word);
    word.clear();
    plain = true;
  };
  for (char c : text) {
    if (is_letter(c) || !is_ascii(c) || c == '\'' || c == '-') {
      plain = plain && c >= 'a' && c <= 'z';
      word += c;
    } else {
      close();
    }
  }
  close();
  return {words.begin(), words.end()};
}

}  // namespace

int draw_between(Rng& rng, int low, int high) {
  return low + count32(rng.below(high - low + 1));
}

TextSource::TextSource(std::string text) : text_(std::move(text)), words_(words_of(text_)) {
  if (text_.size() < kShortestText)
    fail(ErrorKind::kFormat, "the prose has {} characters; at least {} are needed to cut contexts from", text_.size(),
         kShortestText);
  if (words_.size() < kFewestWords)
    fail(ErrorKind::kFormat,
         "the prose has {} different lower-case words of four to nine letters; at least {} are needed", words_.size(),
         kFewestWords);
}

TextSource TextSource::read(const std::vector<std::filesystem::path>& files) {
  std::string text;
  for (const auto& file : files) {
    const MappedFile mapped(file);
    const auto bytes = mapped.bytes();
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text += "\n";
  }
  text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
  return TextSource(std::move(text));
}

TextSource TextSource::generated() {
  return TextSource(generated_prose(400000, 1));
}

std::string_view TextSource::passage(std::size_t n_chars, Rng& rng) const {
  const std::string_view all = text_;
  n_chars = std::min(n_chars, all.size());
  std::size_t begin = rng.below(all.size() - n_chars + 1);
  while (begin > 0 && !is_space(all[begin - 1])) --begin;
  std::size_t end = std::min(all.size(), begin + n_chars);
  while (end < all.size() && !is_space(all[end])) ++end;
  return all.substr(begin, end - begin);
}

std::string TextSource::word(Rng& rng) const {
  return words_[rng.below(words_.size())];
}

std::string TextSource::name(Rng& rng) {
  static constexpr std::string_view kConsonants = "bdfgklmnprstvz", kVowels = "aeiou";
  std::string name;
  for (int i = draw_between(rng, 2, 4); i > 0; --i) {
    name += kConsonants[rng.below(kConsonants.size())];
    name += kVowels[rng.below(kVowels.size())];
  }
  name[0] = to_upper(name[0]);
  return name;
}

std::string TextSource::number(Rng& rng, int n) {
  std::string digits;
  for (int i = n > 0 ? n : draw_between(rng, 4, 7); i > 0; --i) digits += static_cast<char>('0' + rng.below(10));
  return digits;
}

}  // namespace mneme::eval

#include "apps/eval/prose/prose.h"

#include <cctype>
#include <map>
#include <vector>

#include "apps/eval/prose/prose_grammar.h"
#include "apps/eval/prose/text_source.h"
#include "src/base/ascii.h"
#include "src/base/check.h"
#include "src/base/rng.h"

namespace mneme::eval {
namespace {

using Symbols = std::map<std::string_view, std::vector<std::string>>;

Symbols all_symbols() {
  Symbols symbols;
  for (const Sentences& s : prose_sentences()) symbols[s.symbol].assign(s.alternatives.begin(), s.alternatives.end());
  for (const Words& w : prose_words()) {
    std::vector<std::string>& list = symbols[w.symbol];
    std::string word;
    for (char c : w.words) {
      if (c == ' ') {
        if (!word.empty()) list.push_back(word);
        word.clear();
      } else {
        word += c == '_' ? ' ' : c;
      }
    }
    if (!word.empty()) list.push_back(word);
  }
  return symbols;
}

bool is_vowel(char c) {
  return c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u';
}

std::string plural(std::string noun) {
  const auto ends = [&](std::string_view end) { return noun.ends_with(end); };
  if (ends("y") && noun.size() > 1 && !is_vowel(noun[noun.size() - 2])) return noun.substr(0, noun.size() - 1) + "ies";
  if (ends("man")) return noun.substr(0, noun.size() - 2) + "en";
  if (ends("s") || ends("x") || ends("ch") || ends("sh")) return noun + "es";
  return noun + "s";
}

std::string with_article(const std::string& phrase) {
  const bool consonant = !is_vowel(phrase[0]) || phrase.starts_with("us") || phrase.starts_with("uni");
  return (consonant ? "a " : "an ") + phrase;
}

std::string capitalised(std::string phrase) {
  phrase[0] = to_upper(phrase[0]);
  return phrase;
}

// One essay: its people, its town and its topic stay the same.
class Essay {
 public:
  Essay(const Symbols& symbols, Rng rng) : symbols_(symbols), rng_(rng) {
    for (std::string_view symbol : {"hero", "friend", "town", "topic"}) chosen_[symbol] = draw(symbol);
    while (chosen_["friend"] == chosen_["hero"]) chosen_["friend"] = draw("friend");
  }

  std::string write() {
    std::string text = capitalised(expand("{title}")) + "\n\n";
    for (int paragraph = draw_between(rng_, 5, 11); paragraph > 0; --paragraph) {
      for (int sentence = draw_between(rng_, 3, 8); sentence > 0; --sentence)
        text += capitalised(expand("{sentence}")) + (sentence > 1 ? " " : "\n\n");
    }
    return text;
  }

 private:
  std::string draw(std::string_view symbol) {
    const auto it = symbols_.find(symbol);
    MNEME_CHECK(it != symbols_.end(), "the grammar has no {}", symbol);
    // Never the same twice in a row: neighbouring sentences and words differ.
    std::size_t& last = last_[it->first];
    std::size_t at = rng_.below(it->second.size());
    if (at + 1 == last) at = (at + 1) % it->second.size();
    last = at + 1;
    return it->second[at];
  }

  std::string symbol_text(std::string_view name) {
    if (name.starts_with("a ")) return with_article(symbol_text(name.substr(2)));
    if (name.starts_with("s ")) return plural(symbol_text(name.substr(2)));
    if (name.starts_with("^")) return capitalised(symbol_text(name.substr(1)));
    const auto fixed = chosen_.find(name);
    return fixed == chosen_.end() ? expand(draw(name)) : fixed->second;
  }

  std::string expand(const std::string& form) {
    std::string out;
    for (std::size_t i = 0; i < form.size(); ++i) {
      if (form[i] != '{') {
        out += form[i];
        continue;
      }
      const std::size_t end = form.find('}', i);
      MNEME_CHECK(end != std::string::npos, "an open brace in \"{}\"", form);
      out += symbol_text(std::string_view(form).substr(i + 1, end - i - 1));
      i = end;
    }
    return out;
  }

  const Symbols& symbols_;
  Rng rng_;
  std::map<std::string_view, std::string> chosen_;
  std::map<std::string_view, std::size_t> last_;  // 1 + what was drawn last of a symbol
};

}  // namespace

std::string generated_prose(std::size_t n_chars, std::uint64_t seed) {
  const Symbols symbols = all_symbols();
  std::string text;
  for (std::uint64_t essay = 0; text.size() < n_chars; ++essay) text += Essay(symbols, Rng(seed, essay << 32)).write();
  return text;
}

}  // namespace mneme::eval

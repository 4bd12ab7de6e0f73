// RULER's variable tracking, common words and frequent words.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "apps/eval/generated/fit.h"
#include "apps/eval/generated/ruler.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ascii.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

constexpr int kHops = 4;

struct Chain {
  std::vector<std::string> variables, lines;
};

Chain draw_chain(int letters, std::string_view value, Rng& rng) {
  Chain c;
  c.variables = distinct_strings(kHops + 1, [&] {
    std::string name;
    for (int i = 0; i < letters; ++i) name += upper_letter(rng.below(26));
    return name;
  });
  c.lines.push_back(fmt::format("VAR {} = {}", c.variables[0], value));
  for (std::size_t i = 0; i < kHops; ++i)
    c.lines.push_back(fmt::format("VAR {} = VAR {} ", c.variables[i + 1], c.variables[i]));
  return c;
}

// n strings of noise with the chain's lines in order at random places.
std::string noise_with(const Chain& chain, std::int64_t n, Rng& rng) {
  std::vector<std::string> lines(n, std::string(kRulerNoise));
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < chain.lines.size(); ++i) places.push_back(rng.below(lines.size() + 1));
  std::sort(places.begin(), places.end());
  std::string out;
  for (std::size_t i = 0, next = 0; i <= lines.size(); ++i) {
    for (; next < places.size() && places[next] == i; ++next) out += chain.lines[next] + "\n";
    if (i < lines.size()) out += lines[i] + "\n";
  }
  out.pop_back();
  return replaced_all(out, ". \n", ".\n");
}

struct Framed {
  std::string prompt, prefix;
  std::size_t question_bytes;
};

Framed variables_text(std::string_view context, std::string_view value) {
  const std::string question =
      fmt::format("\nQuestion: Find all variables that are assigned the value {} in the text above.", value);
  return {fmt::format("Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{}{}",
                      context, question),
          fmt::format(" Answer: According to the chain(s) of variable assignment in the text above, {} variables are "
                      "assigned the value {}, they are: ",
                      kHops + 1, value),
          question.size()};
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& p : parts) out += (out.empty() ? "" : " ") + p;
  return out;
}

std::string numbered(const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) out += fmt::format("{}{}. {}", i > 0 ? " " : "", i + 1, words[i]);
  return out;
}

constexpr std::string_view kCommonQuestion = "\nQuestion: What are the 10 most common words in the above list?";
constexpr std::string_view kCommonPrefix = " Answer: The top 10 words that appear most often in the list are:";

struct CommonWords {
  std::string context;
  std::vector<std::string> answers;
};

// Words by an index, all different: those of the prose, then made-up ones.
std::vector<std::string> vocabulary(const TextSource& prose, std::size_t n, Rng& rng) {
  std::set<std::string> known;
  std::vector<std::string> words;
  for (int misses = 0; words.size() < n;) {
    std::string w = misses < 50 ? prose.word(rng) : lowered(TextSource::name(rng));
    if (known.insert(w).second) {
      words.push_back(std::move(w));
      misses = 0;
    } else {
      ++misses;
    }
  }
  return words;
}

CommonWords common_words(const std::vector<std::string>& words, int common, int uncommon, Rng& rng) {
  static constexpr std::size_t kCommon = 10;
  CommonWords c;
  c.answers.assign(words.begin(), words.begin() + kCommon);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < words.size(); ++i)
    for (int k = i < kCommon ? common : uncommon; k > 0; --k) all.push_back(words[i]);
  shuffle(all, rng);
  c.context = numbered(all);
  return c;
}

std::string common_prompt(std::string_view context) {
  return fmt::format(
      "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
      "appear most often.\n{}{}",
      context, kCommonQuestion);
}

}  // namespace

GeneratedQuestion ruler_variables(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  const Rng start = rng;
  const auto make = [&](std::int64_t n) {
    Rng r = start;
    const auto digits = [&] { return std::to_string(10000 + r.below(90000)); };
    const std::string shown = digits(), value = digits();
    const Chain example = draw_chain(3, shown, r), chain = draw_chain(5, value, r);
    const Framed first = variables_text(noise_with(example, 5, r), shown);
    const Framed text = variables_text(noise_with(chain, n, r), value);
    GeneratedQuestion q;
    q.prompt = first.prompt + first.prefix + joined(example.variables) + "\n\n" + text.prompt;
    q.question_bytes = text.question_bytes;
    q.answer_prefix = text.prefix;
    q.answers = chain.variables;
    return q;
  };
  return largest_fit(s.task, tokens, s.is_short() ? 2 : 10, s.counter, make).question;
}

GeneratedQuestion ruler_common_words(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  const int common = s.is_short() ? 6 : 30, uncommon = s.is_short() ? 1 : 3;
  const Rng start = rng;
  const auto make = [&](std::int64_t n) {
    Rng r = start;
    const auto words = vocabulary(s.prose, n + 10, r);
    const auto example_words = vocabulary(s.prose, s.is_short() ? 20 : 40, r);
    const CommonWords example = common_words(example_words, s.is_short() ? 3 : 10, s.is_short() ? 1 : 3, r);
    const CommonWords c = common_words(words, common, uncommon, r);
    GeneratedQuestion q;
    q.prompt = common_prompt(example.context) + std::string(kCommonPrefix) + " " + numbered(example.answers) + "\n" +
               common_prompt(c.context);
    q.question_bytes = kCommonQuestion.size();
    q.answer_prefix = kCommonPrefix;
    q.answers = c.answers;
    return q;
  };
  return largest_fit(s.task, tokens, s.is_short() ? 2 : 10, s.counter, make).question;
}

GeneratedQuestion ruler_frequent_words(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  static constexpr double kZeta2 = 1.6449340668482264;
  static constexpr std::string_view kQuestion =
      "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
      "appeared words in the above coded text?";
  const Rng start = rng;
  const auto make = [&](std::int64_t n) {
    Rng r = start;
    auto words = distinct_strings(std::max<std::int64_t>(s.length / 50, 8), [&] {
      std::string w;
      for (int i = 0; i < 6; ++i) w += lower_letter(r.below(26));
      return w;
    });
    words[0] = "...";
    std::vector<std::string> all;
    for (std::int32_t i = 0; i < size32(words); ++i) {
      const double rank = i + 1;
      const auto count = static_cast<std::int64_t>(ratio(n, rank * rank * kZeta2));
      for (std::int64_t k = 0; k < count; ++k) all.push_back(words[i]);
    }
    shuffle(all, r);
    GeneratedQuestion q;
    q.prompt = fmt::format(
        "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
        "appeared coded words. {}{}",
        joined(all), kQuestion);
    q.question_bytes = kQuestion.size();
    q.answer_prefix = " Answer: According to the coded text above, the three most frequently appeared words are:";
    q.answers = {words[1], words[2], words[3]};
    return q;
  };
  return largest_fit(s.task, tokens, s.is_short() ? 40 : 100, s.counter, make).question;
}

}  // namespace mneme::eval

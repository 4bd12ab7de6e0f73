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
#include "src/base/error.h"
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

// n strings of noise, at least as many as the chain has lines; these lie in order before different ones.
std::string noise_with(const Chain& chain, std::int64_t n, Rng& rng) {
  std::vector<std::string> lines(std::max(n, std::ssize(chain.lines)), std::string(kRulerNoise));
  std::vector<std::size_t> places = sample_below(lines.size(), chain.lines.size(), rng);
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

// The lists that suffice for n words, each word once; empty: none is given.
std::vector<std::string> listed_words(const RulerSources* sources, std::size_t n) {
  if (sources == nullptr) return {};
  std::set<std::string> all(sources->nouns.begin(), sources->nouns.end());
  all.insert(sources->adjectives.begin(), sources->adjectives.end());
  all.insert(sources->verbs.begin(), sources->verbs.end());
  if (n > all.size()) all = {sources->more_words.begin(), sources->more_words.end()};
  return n > all.size() ? std::vector<std::string>() : std::vector<std::string>(all.begin(), all.end());
}

// n different words: of the lists, or of the prose and then made-up ones.
std::vector<std::string> vocabulary(const RulerSetting& s, std::size_t n, Rng& rng) {
  std::vector<std::string> words;
  if (const auto listed = listed_words(s.sources, n); !listed.empty()) {
    for (std::size_t i : sample_below(listed.size(), n, rng)) words.push_back(listed[i]);
    return words;
  }
  std::set<std::string> known;
  for (int misses = 0; words.size() < n;) {
    std::string w = misses < 50 ? s.prose.word(rng) : lowered(TextSource::name(rng));
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
  static constexpr std::int64_t kExampleTokens = 500;
  const auto digits = [](Rng& r) { return std::to_string(10000 + r.below(89999)); };
  const auto example_of = [&](std::int64_t n, std::string_view value, Rng& r) {
    const Chain chain = draw_chain(3, value, r);
    const Framed text = variables_text(noise_with(chain, n, r), value);
    GeneratedQuestion q;
    q.prompt = text.prompt + text.prefix;
    q.answers = chain.variables;
    return q;
  };
  const auto trial = [&](std::int64_t n) {
    Rng r = s.trial;
    return example_of(n, "12345", r);
  };
  const std::int64_t shown = largest_fit(s.task, kExampleTokens - s.frame_tokens, 1, s.counter, trial).size;
  const auto make = [&](std::int64_t n, Rng& r) {
    const std::string first = digits(r), value = digits(r);
    const GeneratedQuestion example = example_of(shown, first, r);
    const Chain chain = draw_chain(5, value, r);
    const Framed text = variables_text(noise_with(chain, n, r), value);
    GeneratedQuestion q;
    q.prompt = example.prompt + " " + joined(example.answers) + "\n\n" + text.prompt;
    q.question_bytes = text.question_bytes;
    q.answer_prefix = text.prefix;
    q.answers = chain.variables;
    return q;
  };
  return ruler_fit(s, tokens, s.is_short() ? 5 : 10, rng, make);
}

GeneratedQuestion ruler_common_words(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  static constexpr std::int64_t kCommon = 10;
  const int common = s.is_short() ? 6 : 30, uncommon = s.is_short() ? 1 : 3;
  const auto make = [&](std::int64_t n, Rng& r) {
    const auto words = vocabulary(s, std::max(n, kCommon), r);
    const auto example_words = vocabulary(s, s.is_short() ? 20 : 40, r);
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
  return ruler_fit(s, tokens, 10, rng, make);
}

namespace {

// Words of six letters by falling frequency, the first of them dots.
struct CodedText {
  std::vector<std::string> words;

  CodedText(std::int64_t n, Rng& rng)
      : words(distinct_strings(std::max<std::int64_t>(n, 8), [&] {
          std::string w;
          for (int i = 0; i < 6; ++i) w += lower_letter(rng.below(26));
          return w;
        })) {
    words[0] = "...";
  }

  // About n words: the word of rank k occurs n / (k^2 zeta(2)) times.
  GeneratedQuestion question(std::int64_t n, Rng rng) const {
    static constexpr double kZeta2 = 1.6449340668482264;
    static constexpr std::string_view kQuestion =
        "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
        "appeared words in the above coded text?";
    std::vector<std::string> all;
    for (std::int32_t i = 0; i < size32(words); ++i) {
      const double rank = i + 1;
      const auto count = static_cast<std::int64_t>(ratio(n, rank * rank * kZeta2));
      all.insert(all.end(), count, words[i]);
    }
    shuffle(all, rng);
    GeneratedQuestion q;
    q.prompt = fmt::format(
        "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
        "appeared coded words. {}{}",
        joined(all), kQuestion);
    q.question_bytes = kQuestion.size();
    q.answer_prefix = " Answer: According to the coded text above, the three most frequently appeared words are:";
    q.answers = {words[1], words[2], words[3]};
    return q;
  }
};

}  // namespace

// The published search: from a sixth of the tokens by thirty-seconds of them while the text is shorter, one back; then
// down while this sample is too long.
GeneratedQuestion ruler_frequent_words(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  const auto tokens_of = [&](const GeneratedQuestion& q) { return s.counter.count(q.prompt + q.answer_prefix); };
  const std::int64_t step = std::max<std::int64_t>(tokens / 32, 1), start = tokens / 6;
  Rng draws = s.trial;
  const CodedText trial(tokens / 50, draws);
  const auto fits = [&](std::int64_t k) { return tokens_of(trial.question(start + k * step, draws)) < tokens; };
  std::int64_t low = -1, high = 1;  // texts of start + low * step words are short enough, of high not
  while (fits(high)) low = high, high *= 2;
  while (high - low > 1) (fits((low + high) / 2) ? low : high) = (low + high) / 2;
  const CodedText text(tokens / 50, rng);
  for (std::int64_t n = start + low * step; n > 0; n -= step) {
    GeneratedQuestion q = text.question(n, rng);
    if (tokens_of(q) <= tokens) return q;
  }
  fail(ErrorKind::kOption, "{}: no sample has as few as {} tokens; ask for a longer context", s.task, tokens);
}

}  // namespace mneme::eval

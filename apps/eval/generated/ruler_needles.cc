// RULER's needles: "One of the special magic numbers for KEY is: VALUE." in noise, in prose, or among others like it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/eval/generated/ruler.h"
#include "apps/eval/scorers/words.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

using Haystack = RulerNeedles::Haystack;

constexpr std::string_view kTemplate =
    "Some special magic {t} are hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{t} afterwards.\n{context}\nWhat are all the special magic {t} for {query} mentioned in the provided text?";
constexpr std::string_view kPrefix = " The special magic {t} for {query} mentioned in the provided text are";

struct Needles {
  std::vector<std::string> sentences, queried, answers;
};

std::string value_of(bool is_uuid, Rng& rng) {
  return is_uuid ? uuid(rng) : std::to_string(1000000 + rng.below(9000000));
}

std::string sentence_of(const RulerNeedles& kind, std::string_view key, std::string_view value) {
  return fmt::format("One of the special magic {} for {} is: {}.", kind.uuid_values ? "uuids" : "numbers", key, value);
}

Needles draw_needles(const RulerNeedles& kind, const RulerSetting& s, Rng& rng) {
  Needles n;
  const auto keys = distinct_strings(std::max(kind.keys, kind.queries),
                                     [&] { return kind.uuid_keys ? uuid(rng) : ruler_key(s, rng); });
  const auto asked = sample_below(keys.size(), kind.queries, rng);
  std::vector<std::vector<std::string>> values(keys.size());
  for (std::size_t k = 0; k < keys.size(); ++k)
    for (int v = 0; v < kind.values; ++v) {
      values[k].push_back(value_of(kind.uuid_values, rng));
      n.sentences.push_back(sentence_of(kind, keys[k], values[k].back()));
    }
  shuffle(n.sentences, rng);
  for (std::size_t k : asked) {
    n.queried.push_back(keys[k]);
    n.answers.insert(n.answers.end(), values[k].begin(), values[k].end());
  }
  return n;
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (const std::string& p : parts) out += (out.empty() ? "" : std::string(separator)) + p;
  return out;
}

// Lines of noise, or of other needles, with the needles at random distinct places.
std::string lines_with(const RulerNeedles& kind, const Needles& needles, const RulerSetting& s, std::int64_t n,
                       Rng& rng) {
  std::vector<std::string> lines;
  for (std::int64_t i = 0; i < n; ++i)
    lines.push_back(
        kind.haystack == Haystack::kNoise
            ? std::string(kRulerNoise)
            : sentence_of(kind, kind.uuid_keys ? uuid(rng) : ruler_key(s, rng), value_of(kind.uuid_values, rng)));
  auto places = sample_below(lines.size(), std::min(lines.size(), needles.sentences.size()), rng);
  std::sort(places.rbegin(), places.rend());
  for (std::size_t i = 0; i < needles.sentences.size(); ++i)
    lines.insert(lines.begin() + (i < places.size() ? places[i] : 0), needles.sentences[i]);
  return joined(lines, "\n");
}

// n words of prose with the needles between sentences, at depths drawn from 40 even ones.
std::string essay_with(const Needles& needles, const RulerSetting& s, std::int64_t n, Rng& rng) {
  static constexpr std::size_t kDepths = 40;
  const bool has_essays = s.sources != nullptr && !s.sources->essays.empty();
  const auto sentences =
      sentences_of(first_words(has_essays ? std::string_view(s.sources->essays) : s.prose.text(), n));
  auto depths = sample_below(kDepths, needles.sentences.size(), rng);
  std::sort(depths.begin(), depths.end());
  std::vector<std::string> parts;  // sentences before a needle may be none
  std::size_t done = 0;
  const auto add_until = [&](std::size_t at) {
    std::string part;
    for (; done < at; ++done) part += (part.empty() ? "" : " ") + sentences[done];
    parts.push_back(std::move(part));
  };
  for (std::size_t i = 0; i < depths.size(); ++i) {
    const double depth = std::round(percent(depths[i], kDepths - 1));
    add_until(static_cast<std::size_t>(size32(sentences) * depth / 100));
    parts.push_back(needles.sentences[i]);
  }
  add_until(sentences.size());
  std::string out = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) out += " " + parts[i];
  return out;
}

std::string listed(const std::vector<std::string>& keys) {
  if (keys.size() == 1) return keys.front();
  return joined({keys.begin(), keys.end() - 1}, ", ") + ", and " + keys.back();
}

// A single query with a single value is worded in the singular.
std::string filled(std::string_view text, bool singular, std::string_view type, std::string_view query) {
  std::string out(text);
  if (singular) {
    for (const auto& [from, to] : {std::pair<std::string_view, std::string_view>{"Some", "A"},
                                   {"are all", "is"},
                                   {"are", "is"},
                                   {"answers", "answer"}})
      out = replaced_all(out, from, to);
    type.remove_suffix(1);
  }
  return replaced_all(replaced_all(out, "{t}", type), "{query}", query);
}

std::int64_t step_of(const RulerNeedles& kind, const RulerSetting& s) {
  if (kind.haystack == Haystack::kEssay) return 500;
  return s.is_short() ? 5 : 25;
}

}  // namespace

GeneratedQuestion ruler_needles(const RulerNeedles& kind, const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  const auto make = [&](std::int64_t n, Rng& r) {
    const Needles needles = draw_needles(kind, s, r);
    const std::string context =
        kind.haystack == Haystack::kEssay ? essay_with(needles, s, n, r) : lines_with(kind, needles, s, n, r);
    const bool singular = kind.queries * kind.values == 1;
    const std::string_view type = kind.uuid_values ? "uuids" : "numbers";
    const std::string query = listed(needles.queried);
    const std::string text = filled(kTemplate, singular, type, query);
    const std::size_t hole = text.find("{context}");
    GeneratedQuestion q;
    q.prompt = text.substr(0, hole) + context + text.substr(hole + 9);
    q.question_bytes = text.size() - hole - 9;
    q.answer_prefix = filled(kPrefix, singular, type, query);
    q.answers = needles.answers;
    q.depth = ratio(q.prompt.find(fmt::format("for {} is: ", needles.queried.front())), q.prompt.size());
    return q;
  };
  return ruler_fit(s, tokens, step_of(kind, s), rng, make);
}

}  // namespace mneme::eval

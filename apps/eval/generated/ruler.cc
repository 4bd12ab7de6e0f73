#include "apps/eval/generated/ruler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "apps/eval/generated/fit.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ascii.h"
#include "src/base/error.h"

namespace mneme::eval {
namespace {

using Haystack = RulerNeedles::Haystack;

template <RulerNeedles kKind>
GeneratedQuestion needles(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  return ruler_needles(kKind, s, tokens, rng);
}

constexpr std::array kTasks = {
    RulerTask{"niah_single_1", "contains_all", 128, needles<RulerNeedles{Haystack::kNoise}>},
    RulerTask{"niah_single_2", "contains_all", 128, needles<RulerNeedles{Haystack::kEssay}>},
    RulerTask{"niah_single_3", "contains_all", 128, needles<RulerNeedles{Haystack::kEssay, false, true}>},
    RulerTask{"niah_multikey_1", "contains_all", 128, needles<RulerNeedles{Haystack::kEssay, false, false, 4}>},
    RulerTask{"niah_multikey_2", "contains_all", 128, needles<RulerNeedles{Haystack::kNeedles}>},
    RulerTask{"niah_multikey_3", "contains_all", 128, needles<RulerNeedles{Haystack::kNeedles, true, true}>},
    RulerTask{"niah_multivalue", "contains_all", 128, needles<RulerNeedles{Haystack::kEssay, false, false, 1, 4}>},
    RulerTask{"niah_multiquery", "contains_all", 128, needles<RulerNeedles{Haystack::kEssay, false, false, 4, 1, 4}>},
    RulerTask{"vt", "contains_all", 30, ruler_variables},
    RulerTask{"cwe", "contains_all", 120, ruler_common_words},
    RulerTask{"fwe", "contains_all", 50, ruler_frequent_words},
    RulerTask{"qa_1", "contains_any", 32, ruler_one_hop},
    RulerTask{"qa_2", "contains_any", 32, ruler_two_hops},
};

}  // namespace

std::span<const RulerTask> ruler_tasks() {
  return kTasks;
}

GeneratedQuestion make_ruler(const RulerTask& task, const RulerSetting& setting, std::int64_t frame_tokens,
                             std::uint64_t seed, std::int64_t number) {
  std::uint64_t stream = seed;
  for (char c : task.name) stream = Rng(stream ^ byte_of(c)).next();
  static constexpr std::int64_t kTrial = 0xffffffff;  // no sample's number
  Rng rng = Rng::of_item(stream ^ setting.length, number);
  RulerSetting s = setting;
  s.number = number;
  s.frame_tokens = frame_tokens;
  s.trial = Rng::of_item(stream ^ setting.length, kTrial);
  return task.make(s, setting.length - task.answer_tokens - frame_tokens, rng);
}

GeneratedQuestion ruler_fit(const RulerSetting& s, std::int64_t tokens, std::int64_t step, const Rng& rng,
                            FunctionRef<GeneratedQuestion(std::int64_t size, Rng& rng)> make) {
  const auto trial = [&](std::int64_t n) {
    Rng r = s.trial;
    return make(n, r);
  };
  for (std::int64_t n = largest_fit(s.task, tokens, 1, s.counter, trial).size;;) {
    Rng r = rng;
    GeneratedQuestion q = make(n, r);
    const std::int64_t found = s.counter.count(q.prompt + q.answer_prefix);
    if (found <= tokens) return q;
    if (n == 1)
      fail(ErrorKind::kOption, "{}: the shortest sample has {} tokens, more than {}; ask for a longer context", s.task,
           found, tokens);
    // The published generator knows no sample below one step and would not end.
    n = n > step ? n - step : n - std::max<std::int64_t>(n / 8, 1);
  }
}

std::string ruler_key(const RulerSetting& s, Rng& rng) {
  if (s.sources == nullptr || s.sources->nouns.empty() || s.sources->adjectives.empty()) return s.prose.key(rng);
  const auto& adjectives = s.sources->adjectives;
  const auto& nouns = s.sources->nouns;
  const std::string& first = adjectives[rng.below(adjectives.size())];
  return first + "-" + nouns[rng.below(nouns.size())];
}

std::vector<std::size_t> sample_below(std::size_t n, std::size_t k, Rng& rng) {
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (std::size_t i = 0; i < k; ++i) std::swap(all[i], all[i + rng.below(n - i)]);
  all.resize(k);
  return all;
}

std::string uuid(Rng& rng) {
  const std::uint64_t a = rng.next(), b = rng.next();
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:x}{:03x}-{:012x}", a >> 32, (a >> 16) & 0xffff, a & 0xfff, 8 + (b >> 62),
                     (b >> 48) & 0xfff, b & 0xffffffffffffull);
}

std::string first_words(std::string_view text, std::int64_t n) {
  const auto words = split_words(text.substr(0, n * 24));
  std::string out;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i > 0) out += ' ';
    out += words[i % words.size()];
  }
  return out;
}

std::vector<std::string> sentences_of(std::string_view text) {
  std::vector<std::string> sentences;
  std::size_t begin = 0;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if ((text[i] != '.' && text[i] != '!' && text[i] != '?') || text[i + 1] != ' ') continue;
    sentences.emplace_back(text.substr(begin, i + 1 - begin));
    begin = i + 2;
  }
  if (begin < text.size()) sentences.emplace_back(text.substr(begin));
  return sentences;
}

}  // namespace mneme::eval

// RULER's 13 tasks, generated for any tokenizer at any length.
//
// Differs from the published generator where its data are not part of the project: keys and words are drawn from the
// prose in place of the `wonderwords` lists, the essays are the prose, sentences end at ". ", "! " and "? " in place of
// NLTK's punkt, and the documents of qa_1 and qa_2 are passages of the prose with sentences about made-up people in
// place of SQuAD and HotpotQA. Random numbers are ours, so samples are not the published ones; counts, positions and
// formats are.
//
// Source  Hsieh et al. 2024; NVIDIA/RULER, by behaviour.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "apps/eval/generated/generated.h"
#include "apps/eval/generated/token_counter.h"
#include "apps/eval/prose/text_source.h"

namespace mneme::eval {

struct RulerSetting {
  const TextSource& prose;
  const TokenCounter& counter;
  std::int64_t length = 4096;  // tokens of the sample: prompt, prefix and answer
  std::string_view task;       // for errors

  // Below 4,096 tokens the published generator takes smaller steps and frequencies.
  bool is_short() const { return length < 4096; }
};

struct RulerTask {
  std::string_view name;
  std::string_view scorer;  // apps/eval/scorers/scorer.h
  std::int32_t answer_tokens;
  // A sample of at most `tokens` tokens of prompt and prefix.
  GeneratedQuestion (*make)(const RulerSetting& setting, std::int64_t tokens, Rng& rng);
};

std::span<const RulerTask> ruler_tasks();

// The `number`-th sample: prompt, prefix, answer and `frame_tokens` of chat framing have at most `length` tokens.
//
// Errors  kOption: too short for the task.
GeneratedQuestion make_ruler(const RulerTask& task, const RulerSetting& setting, std::int64_t frame_tokens,
                             std::uint64_t seed, std::int64_t number);

// The families, by file.
struct RulerNeedles {
  enum class Haystack : std::uint8_t { kNoise, kEssay, kNeedles } haystack = Haystack::kNoise;
  bool uuid_keys = false, uuid_values = false;
  int keys = 1, values = 1, queries = 1;
};
GeneratedQuestion ruler_needles(const RulerNeedles& kind, const RulerSetting& s, std::int64_t tokens, Rng& rng);
GeneratedQuestion ruler_variables(const RulerSetting& s, std::int64_t tokens, Rng& rng);
GeneratedQuestion ruler_common_words(const RulerSetting& s, std::int64_t tokens, Rng& rng);
GeneratedQuestion ruler_frequent_words(const RulerSetting& s, std::int64_t tokens, Rng& rng);
GeneratedQuestion ruler_one_hop(const RulerSetting& s, std::int64_t tokens, Rng& rng);
GeneratedQuestion ruler_two_hops(const RulerSetting& s, std::int64_t tokens, Rng& rng);

// "The grass is green. ..." as RULER repeats it.
inline constexpr std::string_view kRulerNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// Parts that the families share.
//
// n different strings of `make`.
template <typename F>
std::vector<std::string> distinct_strings(std::size_t n, F&& make) {
  std::vector<std::string> all;
  while (all.size() < n) {
    std::string s = make();
    bool known = false;
    for (const std::string& other : all) known = known || other == s;
    if (!known) all.push_back(std::move(s));
  }
  return all;
}
template <typename T>
void shuffle(std::vector<T>& all, Rng& rng) {
  for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[rng.below(i)]);
}
// k different numbers below n, in random order. Requires  k <= n.
std::vector<std::size_t> sample_below(std::size_t n, std::size_t k, Rng& rng);
// A random (version 4) UUID.
std::string uuid(Rng& rng);
// Runs of white space become one space; the first n words of the text, repeated where it is too short.
std::string first_words(std::string_view text, std::int64_t n);
std::vector<std::string> sentences_of(std::string_view text);

}  // namespace mneme::eval

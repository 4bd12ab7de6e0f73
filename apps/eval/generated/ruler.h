// RULER's 13 tasks, generated for any tokenizer at any length.
//
// Counts, positions, formats and the search for the size that fits are the published generator's; random numbers are
// ours, so samples are not the published ones. What the published generator reads (essays, word lists, SQuAD, HotpotQA)
// may be given as RulerSources. Where it is not, keys and words are drawn from the prose, the essays are the prose, and
// the documents of qa_1 and qa_2 are passages of the prose with sentences about made-up people. Sentences end at ". ",
// "! " and "? " in place of NLTK's punkt.
//
// Source  Hsieh et al. 2024; NVIDIA/RULER at c3f5e3b, by behaviour.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/eval/generated/generated.h"
#include "apps/eval/generated/token_counter.h"
#include "apps/eval/prose/text_source.h"
#include "src/base/function_ref.h"

namespace mneme::eval {

// Questions over documents, as SQuAD and HotpotQA have them.
struct RulerDocuments {
  struct Question {
    std::string text;
    std::vector<std::string> answers;
    std::vector<std::size_t> gold, near;  // documents that hold the answer; others of the same article
  };
  std::vector<std::string> documents;  // different from one another
  std::vector<Question> questions;
};

// What the published generator reads beside its code. What is empty is made of the prose.
struct RulerSources {
  std::string essays;
  std::vector<std::string> nouns, adjectives, verbs;  // keys are "adjective-noun"
  std::vector<std::string> more_words;                // where common words need more than these lists have
  RulerDocuments one_hop, two_hops;
};

struct RulerSetting {
  const TextSource& prose;
  const TokenCounter& counter;
  std::int64_t length = 4096;  // tokens of the sample: prompt, prefix and answer
  std::string_view task;       // for errors
  const RulerSources* sources = nullptr;
  // Set by make_ruler: the sample's number, what the chat format adds, and the stream of the trial that finds the size
  // of all samples.
  std::int64_t number = 0, frame_tokens = 0;
  Rng trial{0};

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

// The size of a trial that just fits, less a multiple of `step` where this sample of it is too long: as published.
//
// Requires  make(n, rng) draws the same for the same stream; n >= 1. Errors  kOption: make(1) does not fit.
GeneratedQuestion ruler_fit(const RulerSetting& s, std::int64_t tokens, std::int64_t step, const Rng& rng,
                            FunctionRef<GeneratedQuestion(std::int64_t size, Rng& rng)> make);

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
// "adjective-noun" of the sources, or two words of the prose.
std::string ruler_key(const RulerSetting& s, Rng& rng);
// A random (version 4) UUID.
std::string uuid(Rng& rng);
// Runs of white space become one space; the first n words of the text, repeated where it is too short.
std::string first_words(std::string_view text, std::int64_t n);
std::vector<std::string> sentences_of(std::string_view text);

}  // namespace mneme::eval

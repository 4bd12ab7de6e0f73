// Questions about facts hidden in long documents, of the kinds that the shipped model was trained to answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/rng.h"

namespace mneme {

struct NeedlePrompt {
  std::string kind, document, question, answer;
};

enum class NeedleKind : std::uint8_t { kNumber, kWhere, kNumbers, kRegister, kChain };

class NeedleMaker {
 public:
  // prose: what the facts are hidden in, longer than any document; facts are made of the seed.
  NeedleMaker(std::string prose, std::uint64_t seed);

  // A document of about n_chars characters (a token is about 3.7 of them in novels).
  NeedlePrompt make(NeedleKind kind, std::size_t n_chars);

  // Plain sentences from a small grammar, for where no novel is at hand.
  static std::string made_up_prose(std::size_t n_chars, std::uint64_t seed);

 private:
  using Facts = std::vector<std::string>;
  NeedlePrompt number();
  NeedlePrompt where();
  NeedlePrompt numbers();
  NeedlePrompt register_of(std::size_t n_chars);
  NeedlePrompt chain();
  std::string hide(const Facts& facts, std::size_t n_chars);

  std::string key();
  std::string name();
  std::string digits(std::size_t n);
  std::size_t below(std::size_t n) { return rng_.below(n); }

  std::string prose_;
  std::vector<std::string> words_;  // keys are made of two
  Rng rng_;
  Facts facts_;
};

}  // namespace mneme

// Answers drawn from the masks of a constraint, and what the parser reads in them.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "src/text/answer_grammar/answer_constraint.h"
#include "src/text/answer_grammar/answer_matcher.h"
#include "src/text/answer_grammar/answer_rules.h"

namespace mneme::answer_test {

// The shipped model's vocabulary; `special` adds the marks of all formats that look like special tokens as such.
const Tokenizer& shipped_tokenizer(bool special);
std::shared_ptr<const TokenTrie> shipped_trie(bool special);
std::shared_ptr<const AnswerMarks> marks_of(const std::string& format, bool special);

// A chat request's tools, as the server makes rules of them.
std::vector<CallRule> rules_of(const nlohmann::ordered_json& tools);

struct Walk {
  std::string text;                                        // special tokens as they are spelled
  std::vector<AnswerEvent> events;                         // that the parser reads
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::string content, thought;
  std::size_t tokens = 0;
  bool ended = false;  // by itself
};

class Walker {
 public:
  // `tools`: as the parser knows them.
  Walker(const AnswerRules& rules, const AnswerTools& tools, bool special, std::optional<ThoughtBudget> budget = {});

  // One answer of the mask's tokens: at most `most` of them; beyond `patience` it takes what ends its parts, if it may.
  // `calls`: it opens a call wherever it may. Fails the test where a mask is empty, or unlike that of all tokens tried one
  // by one (every so many tokens).
  Walk walk(std::mt19937& random, std::size_t patience, std::size_t most, bool calls);
  std::shared_ptr<const TokenConstraint> begin() const { return begin_; }

 private:
  using Mask = std::vector<std::uint64_t>;
  Mask mask_of(const TokenConstraint& constraint) const;
  Mask naive_mask(const AnswerMatcher::State& state) const;
  std::string bytes_of(TokenId id) const;
  // Tokens of the first of these texts that may come next; empty: none may.
  std::vector<TokenId> fitting(const TokenConstraint& from, const std::vector<std::string>& texts, std::mt19937& random,
                               bool shuffled) const;
  std::vector<TokenId> select(const TokenConstraint& from, const Mask& mask, const AnswerMatcher::Next& next, bool late,
                              bool calls, std::mt19937& random) const;

  const AnswerRules& rules_;
  const AnswerTools& tools_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<const TokenTrie> trie_;
  AnswerMatcher matcher_;
  std::shared_ptr<const TokenConstraint> begin_;
  std::vector<std::string> openers_, ends_of_texts_, closers_;
};

}  // namespace mneme::answer_test

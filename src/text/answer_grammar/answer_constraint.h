// An answer's grammar as a TokenConstraint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/text/answer/answer_parser.h"
#include "src/text/answer_grammar/answer_steps.h"
#include "src/text/constraint/token_constraint.h"
#include "src/text/constraint/token_trie.h"

namespace mneme {

// After so many tokens of a thought these follow, which end it.
struct ThoughtBudget {
  std::int32_t tokens = 0;
  std::vector<TokenId> close;
};

// Where the vocabulary cannot go on, only tokens that end an answer are allowed.
//
// Requires  the program is of the same marks.
// Errors    kUnsupported: no token of the vocabulary ends an answer.
std::shared_ptr<const TokenConstraint> answer_constraint(std::shared_ptr<const TokenTrie> trie,
                                                         std::shared_ptr<const AnswerMarks> marks,
                                                         AnswerProgram program,
                                                         std::optional<ThoughtBudget> budget = {});

}  // namespace mneme

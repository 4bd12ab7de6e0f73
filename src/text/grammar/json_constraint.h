// JSON grammar as a TokenConstraint.
#pragma once

#include <memory>

#include "src/text/constraint/token_constraint.h"
#include "src/text/constraint/token_trie.h"
#include "src/text/grammar/json_nodes.h"

namespace mneme {

// Allows documents of the grammar, followed by a token that ends an answer. Where the vocabulary cannot continue a
// document, only such tokens are allowed.
//
// Errors  kUnsupported: no token of the vocabulary ends an answer.
std::shared_ptr<const TokenConstraint> json_constraint(std::shared_ptr<const TokenTrie> trie, JsonGrammar grammar);

}  // namespace mneme

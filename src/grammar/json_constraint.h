// JSON as a constraint on tokens.
#pragma once

#include <memory>

#include "src/grammar/json_nodes.h"
#include "src/grammar/token_trie.h"
#include "src/sampler/token_constraint.h"

namespace mneme {

// Documents of the grammar, each followed by a token that ends an answer. A vocabulary that cannot write a document on
// has only such tokens left.
std::shared_ptr<const TokenConstraint> json_constraint(std::shared_ptr<const TokenTrie> trie, JsonGrammar grammar);

}  // namespace mneme

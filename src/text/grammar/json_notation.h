// Documents of a JSON grammar in the notations in which models write arguments.
#pragma once

#include <string>
#include <vector>

#include "src/text/grammar/json_nodes.h"

namespace mneme {

// Names that are written without quotes: readers of answers take at most 256 bytes, and undeclared ones end sooner.
inline constexpr std::size_t kLongestBareName = 255, kLongestUndeclaredName = 64;

// {key:value} with bare keys, strings between `quote`, which no string contains.
//
// Errors  kUnsupported: a property whose name cannot be written without quotes.
JsonGrammar with_bare_keys(JsonGrammar grammar, const std::string& quote);

// (key=value) at the root; Python's literals, which have True, False and None and no "\/".
//
// Errors  as with_bare_keys(), of the root's properties.
JsonGrammar as_arguments(JsonGrammar grammar);

// One of these texts, as they are; a text that matches the pattern from its beginning to its end.
//
// Requires  some text, none of them empty. Errors  kUnsupported: as Pattern's.
JsonGrammar one_of(const std::vector<std::string>& texts);
JsonGrammar text_like(const std::string& pattern);

// The nodes that a value of `root` may be, unions resolved. Those that nest too deep are left out.
std::vector<NodeId> kinds_of(const JsonGrammar& grammar, NodeId root);

}  // namespace mneme

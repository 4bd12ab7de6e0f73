// The tables of recipes, blocks and what combines, from the registry itself: `mneme methods` and docs/methods.md are
// made of these.
#pragma once

#include <string>

namespace mneme {

// Markdown: one table of recipes, one of their settings, one of the keys of `--kv`, one of units against indexes.
std::string methods_markdown();

}  // namespace mneme

// Tables of recipes, blocks and valid combinations, generated from the registry, for `mneme methods` and
// docs/reference/methods.md.
#pragma once

#include <string>

namespace mneme {

// Markdown: tables of recipes, of their settings, of the keys of `--kv`, and of units against indexes.
std::string methods_markdown();

}  // namespace mneme

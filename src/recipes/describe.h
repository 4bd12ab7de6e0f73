// Recipes, blocks and valid combinations, generated from the registry, for `mneme methods` and docs/reference/methods.md.
#pragma once

#include <string>
#include <string_view>

namespace mneme {

// Markdown: tables of recipes, of their settings, of the keys of `--kv`, and of units against indexes.
std::string methods_markdown();

// A terminal's width: no line of methods_list() and method_text() is longer, but for a value of a setting that is.
inline constexpr std::size_t kDescribeColumns = 100;
// One line a method, then the names of the papers' forms.
std::string methods_list();
// A method's or a form's source, where it runs, and its settings with their defaults and values.
//
// Errors  kOption: no method or form of this name.
std::string method_text(std::string_view name);

}  // namespace mneme

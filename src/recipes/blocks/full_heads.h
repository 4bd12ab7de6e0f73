// Files that name the KV heads which attend everything: L lines of Hk numbers, separated by tabs or spaces; 0.5 or more
// is a full head. The files of RazorAttention's and DuoAttention's ports have this form.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/recipes/compile.h"

namespace mneme {

// Errors  kFile: the file cannot be read. kFormat: no numbers, or lines of different lengths.
FullHeads read_full_heads(const std::string& file);
FullHeads parse_full_heads(std::string_view text, const std::string& file);

// Reasons why they do not fit the recipe or the model.
void check_full_heads(const Recipe& recipe, const MethodShape& shape, std::vector<std::string>& reasons);

}  // namespace mneme

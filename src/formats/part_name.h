// Names of the parts of a split GGUF model: NAME-00002-of-00003.gguf.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mneme {

struct GgufPartName {
  std::string stem;           // NAME
  int number = 0, count = 0;  // 1 <= number <= count
};

// `stem`: a path without its extension. Absent: not a part's name.
std::optional<GgufPartName> gguf_part_name(std::string_view stem);

}  // namespace mneme

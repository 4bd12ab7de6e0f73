#include "src/formats/part_name.h"

namespace mneme {

std::optional<GgufPartName> gguf_part_name(std::string_view stem) {
  constexpr std::size_t kTail = std::string_view("-00001-of-00003").size();
  if (stem.size() <= kTail) return std::nullopt;
  const std::string_view tail = stem.substr(stem.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-") return std::nullopt;
  const auto number = [](std::string_view digits) {
    int value = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9') return -1;
      value = value * 10 + (c - '0');
    }
    return value;
  };
  const GgufPartName out{std::string(stem.substr(0, stem.size() - kTail)), number(tail.substr(1, 5)),
                         number(tail.substr(10, 5))};
  if (out.number < 1 || out.count < 1 || out.number > out.count) return std::nullopt;
  return out;
}

}  // namespace mneme

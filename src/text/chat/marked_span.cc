#include "src/text/chat/marked_span.h"

#include <algorithm>

#include "src/base/size32.h"

namespace mneme {

std::pair<std::int32_t, std::int32_t> differing_span(std::span<const std::int32_t> text,
                                                     std::span<const std::int32_t> other) {
  const auto first = std::mismatch(text.begin(), text.end(), other.begin(), other.end()).first - text.begin();
  const std::size_t room = std::min(text.size(), other.size()) - first;
  std::size_t same = 0;
  while (same < room && text[text.size() - 1 - same] == other[other.size() - 1 - same]) ++same;
  return {count32(first), count32(text.size() - same)};
}

}  // namespace mneme

// The known name that a mistyped one is most like, for messages that ask "did you mean ...?".
#pragma once

#include <span>
#include <string_view>

namespace mneme {

// Case does not count, nor does '-' against '_'. A third of the letters may be wrong: insertions, deletions,
// replacements, and exchanges of neighbours.
//
// Returns  one of `names`, the first of several that are equally like; "": none is.
std::string_view most_like(std::string_view name, std::span<const std::string_view> names);

}  // namespace mneme

// How long-running library calls tell how far they are. The library prints nothing; whoever calls it draws the bar.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace mneme {

// Called with what is done of what there is to do, in the unit that `what` names ("prefill, tokens"). May be empty.
using ProgressFn = std::function<void(std::string_view what, std::int64_t done, std::int64_t total)>;

}  // namespace mneme

// Windows of a windowed prefill, and what their rows attend: arithmetic only (defined in window_attention.h).
#pragma once

#include <cstdint>

#include "src/recipes/compile.h"

namespace mneme {

struct WindowSpan {
  std::int32_t begin = 0, end = 0;  // positions
  bool everything = false;          // the rows attend all earlier tokens
  // Attended: sinks [0, sink), the selection, and from `base` on all tokens; with `slides` the last `recent` as the
  // local part, and with `keeps` the others as the remote part.
  std::int32_t sink = 0, base = 0;
  bool keeps = false, slides = false;

  // Tokens from `base` on that all rows attend together.
  std::int64_t local_tokens(std::int32_t recent) const;
};

// The window starting at `begin`, of rows up to `end`.   dense: the layer attends everything
WindowSpan window_at(const Plan& plan, bool dense, std::int32_t begin, std::int32_t end);

}  // namespace mneme

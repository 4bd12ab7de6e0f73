// Where the windows of a windowed prefill begin and end, and what their rows see: pure arithmetic, no data
// (window_attention.h has it in words).
#pragma once

#include <cstdint>

#include "src/recipes/compile.h"

namespace mneme {

struct PrefillWindowRows {
  std::int32_t begin = 0, end = 0;  // positions
  bool everything = false;          // they attend all tokens before them
  // Sinks [0, sink), then what is selected; then from `base` on: all, or where it slides the last `recent` tokens as
  // near ones, and where it keeps the others too, as far ones.
  std::int32_t sink = 0, base = 0;
  bool keeps = false, slides = false;

  // Tokens from `base` on that the rows attend together.
  std::int64_t near_tokens(std::int32_t recent) const;
};

// The window that begins at `begin`, of rows up to `end`.   dense: of a layer that attends everything
PrefillWindowRows window_at(const Plan& plan, bool dense, std::int32_t begin, std::int32_t end);

}  // namespace mneme

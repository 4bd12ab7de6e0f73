#include "src/engine/schedule/prefill_chunk.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {

PrefillChunk::PrefillChunk(double target_seconds, std::int32_t most)
    : target_(target_seconds), most_(most), chunk_(std::min(most, 4 * kLeast)) {
  MNEME_CHECK(target_seconds >= 0 && most >= 1, "{} seconds, {} tokens", target_seconds, most);
  if (target_ == 0) chunk_ = most;
}

std::int32_t PrefillChunk::tokens() const {
  return static_cast<std::int32_t>(chunk_);
}

void PrefillChunk::observe(std::int32_t answer_rows, std::int32_t prompt_tokens, double seconds) {
  if (target_ == 0 || answer_rows == 0 || !(seconds > 0)) return;
  if (prompt_tokens == 0) {
    alone_ += (alone_ == 0 ? 1 : 0.2) * (seconds - alone_);
    return;
  }
  const double factor = std::clamp(std::max(target_, kAlone * alone_) / seconds, 0.5, 1.25);
  if (prompt_tokens < tokens() && factor >= 1) return;
  chunk_ = std::clamp<double>(prompt_tokens * factor, std::min(kLeast, most_), most_);
}

}  // namespace mneme

// What is told of one answer, piece by piece: by the engine loop and by sessions, to the server's replies and to Python.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mneme/scores.h"
#include "mneme/stats.h"

namespace mneme {

// Tokens read of each page, over compressed layers, KV heads and steps. Sinks and the recent window, which every step
// reads, are not counted.
struct PageReads {
  std::vector<std::int64_t> pages;
  std::int64_t steps = 0;
  std::int64_t most = 0;              // of one page: what it would be had every selection taken all of it
  std::int32_t sink = 0, recent = 0;  // tokens at both ends that every step reads
};

// Told with the end of an answer.
struct AnswerSummary {
  StopReason reason = StopReason::kEnd;
  std::string stop_string;  // kStopString: which
  AnswerStats stats;
};

struct AnswerPiece {
  std::string text;                  // whole characters
  std::vector<TokenScore> tokens;    // whose text begins in the pieces so far, each told once
  std::optional<PageReads> reads;    // so far
  std::optional<AnswerSummary> end;  // no piece follows

  // Nothing of the answer is in it.
  bool empty() const { return text.empty() && tokens.empty() && !end; }
  // Makes one piece of two that follow each other.
  void append(AnswerPiece next);
};

}  // namespace mneme

// How often the steps of an answer read each page of its sequence: what methods that select units leave to be seen.
//
// Threads  the engine's.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "src/engine/answer/answer_piece.h"
#include "src/methods/decode_observer.h"
#include "src/methods/stats/method_stats.h"

namespace mneme {

class ReadCounter final : public DecodeObserver {
 public:
  // Counts for the method that these counts are part of, until forget().
  void count_for(const MethodStats* method) { reads_[method] = {}; }
  void forget(const MethodStats* method) { reads_.erase(method); }
  bool empty() const { return reads_.empty(); }
  // Null: reads are not counted.
  const PageReads* reads_of(const MethodStats* method) const;

  void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) override;

 private:
  std::unordered_map<const MethodStats*, PageReads> reads_;
};

}  // namespace mneme

// Hits that a device cache of host pages would have: what decides how many cache slots a method should have.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/methods/decode_observer.h"
#include "src/recipes/compile.h"

namespace mneme::eval {

struct SlotHits {
  double slots = 0;  // as a multiple of a selection
  std::int64_t selected = 0, hits = 0;
};

// Observes decode steps of sequences with a method that selects, and keeps for each (layer, selection head) when each
// unit was last selected. A cache of n slots evicts the least recently selected; of units selected in one step, the
// higher ones. So a unit is a hit if fewer than n units were selected more recently. The first step of a sequence fills
// the cache and is not counted.
class SlotHitsObserver final : public DecodeObserver {
 public:
  explicit SlotHitsObserver(const std::vector<double>& slots);

  void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) override;
  // Call between contexts: sequence slots are reused with other tokens.
  void forget_sequences() { heads_.clear(); }
  const std::vector<SlotHits>& hits() const { return hits_; }

 private:
  struct Head {
    std::int32_t length = 0;              // of the sequence at the last step
    std::vector<std::int32_t> last_used;  // by unit: length of the sequence when it was selected; 0: never
  };
  void count(const Head& head, const std::vector<std::int32_t>& units);

  std::vector<SlotHits> hits_;
  std::map<std::pair<const SequenceCache*, std::int64_t>, Head> heads_;
  std::vector<std::int32_t> order_;  // scratch of count()
};

struct MethodHits {
  std::string method;
  std::vector<SlotHits> hits;
};

std::string slot_hits_table(const std::vector<MethodHits>& methods);
nlohmann::json slot_hits_json(const std::vector<MethodHits>& methods);
std::string slot_hits_svg(const std::vector<MethodHits>& methods);

}  // namespace mneme::eval

// Shared layer budget: layers whose scores spread over more units select more units.
// Source  ActQKV (Xiao et al. 2025), equations 10 to 12. Entropies are divided by ln(units), so that they compare
//         across lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/formats/bytes/byte_reader.h"
#include "src/formats/bytes/byte_writer.h"

namespace mneme {

// Entropy of softmax(scores), natural logarithm. NaN among the scores gives NaN; no scores give 0.
double score_entropy(std::span<const float> scores);

// One sequence's budget, shared by its layers step after step.
class EntropyCut {
 public:
  static constexpr std::int32_t kHistory = 100;  // entropies that a layer's mean is over

  EntropyCut() = default;
  // k         units per layer, on average
  // reversed  ablation: layers whose scores spread over more units select fewer
  EntropyCut(std::int32_t n_layers, std::int32_t k, bool reversed);

  // Units of layer `layer` in a step; call for layers 0, 1, ... in order. `slot` distinguishes concurrent steps
  // (windows of a chunk); layer 0 starts a step.
  //
  //   entropy  of the layer's scores over `n_units` candidates
  //
  // Returns at least max(1, k / 2) and at most 2 k, or n_units if less. Over all layers of a step at most k per layer,
  // and exactly that where no bound applies. NaN counts as 1, an even spread.
  std::int32_t take(std::size_t slot, std::int32_t layer, double entropy, std::int32_t n_units);

  // State of take(), for the device form: the sum of the later layers' weights, and a layer's normalised entropy in a
  // step.
  double later(std::int32_t layer) const;
  void add(std::int32_t layer, double entropy);
  bool reversed() const { return reversed_; }

  static std::int32_t least(std::int32_t k) { return k / 2 > 1 ? k / 2 : 1; }
  static std::int32_t most(std::int32_t k) { return 2 * k; }
  // Mean of the layer's normalised entropies so far; 1 before the first.
  double mean_entropy(std::int32_t layer) const;
  // Entropies so far, for saved sessions; a step's pool is not saved. Errors  kFormat: unexpected end of data, or an
  // impossible entropy.
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
  std::size_t bytes() const;

 private:
  struct History {
    std::int64_t n = 0;                                           // entropies seen
    std::vector<double> last = std::vector<double>(kHistory, 0);  // the i-th at i % kHistory
  };

  double share(double entropy) const;

  std::int32_t k_ = 0;
  bool reversed_ = false;
  std::vector<History> history_;  // by layer
  std::vector<double> pools_;     // by slot: units left for the later layers
};

}  // namespace mneme

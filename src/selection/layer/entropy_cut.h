// How many units each layer selects: layers whose scores spread over more units get more of a budget that all share.
// Source  ActQKV (Xiao et al. 2025), equations 10 to 12; entropies are divided by ln(units), so that those of different
//         lengths compare.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/checkpoint/byte_reader.h"
#include "src/checkpoint/byte_writer.h"

namespace mneme {

// Entropy of softmax(scores), natural logarithm. NaN among the scores gives NaN; no scores give 0.
double score_entropy(std::span<const float> scores);

// One sequence's share-out over its compressed layers, step after step.
class EntropyCut {
 public:
  static constexpr std::int32_t kHistory = 100;  // entropies of a layer that its mean is over

  EntropyCut() = default;
  // k     units a layer, on average
  // reversed  layers whose scores spread over more units get fewer: the ablation
  EntropyCut(std::int32_t n_layers, std::int32_t k, bool reversed);

  // Units of layer `layer` in a step: called for layers 0, 1, ... in order. `slot` tells steps apart that run beside
  // one another (windows of a chunk); layer 0 begins its step anew.
  //
  //   entropy  of the layer's scores over `n_units` candidates
  //
  // At least max(1, k / 2) and at most 2 k, or n_units where that is less; over all layers of a step at most k a layer,
  // and exactly that where no bound is met. NaN counts as 1, an even spread.
  std::int32_t take(std::size_t slot, std::int32_t layer, double entropy, std::int32_t n_units);

  // What take() goes by, for whoever shares out elsewhere: the sum of what the layers after this one weigh, and the
  // layer's normalised entropy in a step.
  double later(std::int32_t layer) const;
  void add(std::int32_t layer, double entropy);
  bool reversed() const { return reversed_; }

  static std::int32_t least(std::int32_t k) { return k / 2 > 1 ? k / 2 : 1; }
  static std::int32_t most(std::int32_t k) { return 2 * k; }
  // Mean of the layer's normalised entropies so far; 1 before the first.
  double mean_entropy(std::int32_t layer) const;
  // What layers had so far, for saved sessions; a step's pool is none of it. Errors  kFormat: the bytes end, or an
  // entropy that none can have.
  void write(ByteWriter& out) const;
  void read(ByteReader& in);
  std::size_t bytes() const;

 private:
  struct History {
    std::int64_t n = 0;                                           // how many there were
    std::vector<double> last = std::vector<double>(kHistory, 0);  // the i-th at i % kHistory
  };

  double share(double entropy) const;

  std::int32_t k_ = 0;
  bool reversed_ = false;
  std::vector<History> history_;  // by layer
  std::vector<double> pools_;     // by slot: units that are left for the layers to come
};

}  // namespace mneme

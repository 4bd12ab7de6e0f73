// What kept selections still hold of the attention, against how often they are made again: gates replayed over decode
// steps with full attention, with selections by the true attention, so that no index takes part.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/eval/figures/chart.h"
#include "src/methods/decode_observer.h"
#include "src/recipes/compile.h"
#include "src/selection/region/region.h"

namespace mneme::eval {

// When a kept selection is made again.
enum class ReplayGate : std::uint8_t {
  kCosine,        // of a layer: the mean cosine of its queries with those of the step before is below the threshold
  kCosineToLast,  // with those of the step that selected last
  kInterval,      // at every n-th step
  kMass,          // of a KV head: it holds less than the threshold of what a selection of this step would hold
};
std::string_view gate_name(ReplayGate gate);

struct ReplayPolicy {
  std::int32_t unit = 1;  // tokens
  ReplayGate gate = ReplayGate::kCosine;
  double threshold = 0;
};

struct ReplayOptions {
  std::int32_t budget = 512, sink = 32, recent = 128;
  std::vector<std::int32_t> units = {1, 16};
  std::vector<double> taus = {0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9};
  std::vector<double> intervals = {2, 3, 4, 6, 8, 16, 32};
  std::vector<double> shares = {0.5, 0.7, 0.8, 0.9, 0.95, 0.98};  // of kMass

  std::vector<ReplayPolicy> policies() const;
};

// Held mass, over (step, layer, KV head): what a head attends of the softmax, sinks and window included, as a share of
// what it would attend with a selection of this step's.
class GateReplay {
 public:
  GateReplay(std::int32_t n_layers, std::int32_t n_kv_heads, ReplayOptions options);

  // One step of a layer. Steps of up to `budget` tokens are not counted.
  //   sequence   key of the sequence
  //   mass       [n_kv_heads, n]  mean of the softmax over the group
  //   q          all query heads of the layer, concatenated head by head
  void step(const void* sequence, std::int32_t layer, std::span<const float> mass, std::span<const float> q,
            std::int32_t head_dim);
  // Call between contexts: sequence slots are reused with other tokens.
  void forget_sequences() { sequences_.clear(); }

  struct Result {
    ReplayPolicy policy;
    std::int64_t n = 0, selected = 0;  // heads and steps; of them, how many selected again
    double held = 0;                   // mean
    double worst_tenth = 0;            // mean of the least tenth
    std::vector<double> along;         // mean by step of a sequence, from its first
  };
  std::vector<Result> results() const;
  std::int32_t layers() const { return n_layers_; }

 private:
  struct Head {
    std::vector<std::int32_t> units;  // ascending
  };
  struct Layer {
    std::vector<float> last;                    // queries of the step before
    std::vector<std::vector<float>> selecting;  // by policy: of the step that selected last
    std::vector<Head> heads;                    // by policy, then KV head
    std::int64_t steps = 0;
  };
  struct Sums {
    std::int64_t selected = 0;
    std::vector<float> held;
    std::vector<std::pair<double, std::int64_t>> along;
  };
  struct Fresh;
  Fresh fresh_of(std::span<const float> mass, std::int32_t unit) const;
  void step_policy(std::size_t p, Layer& state, bool turned, std::span<const Fresh> heads);

  std::int32_t n_layers_, n_kv_heads_;
  ReplayOptions options_;
  std::vector<ReplayPolicy> policies_;
  std::vector<Sums> sums_;  // by policy
  std::map<const void*, std::vector<Layer>> sequences_;
};

// Feeds a replay from decode steps of full attention.
class GateReplayObserver final : public DecodeObserver {
 public:
  GateReplayObserver(const MethodShape& shape, ReplayOptions options);
  void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) override;

  GateReplay& replay() { return replay_; }

 private:
  MethodShape shape_;
  GateReplay replay_;
};

// Held mass against the share of selections, in percent, mean and least tenth; and along the steps, for the gates whose
// share of selections is nearest to that of the mass gate at 0.95.
std::vector<LineChart> replay_charts(std::span<const GateReplay::Result> results);

}  // namespace mneme::eval

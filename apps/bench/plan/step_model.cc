#include "apps/bench/plan/step_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "src/base/ratio.h"
#include "src/kv/page_pool.h"
#include "src/parallel/peer_protocol.h"

namespace mneme {
namespace {

// Seconds, from the decode records of one H200 (bench/results, builds up to 238e294).
constexpr double kLayer = 31e-6;             // launches of a layer; what is left of full attention at 2K
constexpr double kLayerPortable = 41e-6;     // by kernels compiled for 80-virtual (m9-portable-h200)
constexpr double kLayerRow = 1.5e-6;         // of each sequence beyond what it reads (m8-batch-h200, full)
constexpr double kRegion = 4.7e-6;           // sinks and window by page tables, not by ranges
constexpr double kSelectRow = 2e-6;          // of each sequence, of a layer that selects
constexpr double kSelect = 18e-6;            // a selection on the critical path
constexpr double kCorrect = 10e-6;           // one that a gate asked for
constexpr double kScanRate = 1e12;           // bytes a second of one sequence's index, by one cluster a KV head
constexpr double kScanEveryStep = 2e12;      // the same, where all heads select
constexpr double kTokens = 40e-6;            // single tokens from the host: resolve and gather of small blocks
constexpr double kMassGate = 28e-6;          // a gate by missing mass
constexpr double kUnfused = 43e-6;           // score, pool and top-k as kernels of their own
constexpr double kUnfusedEveryStep = 57e-6;  // the same on the critical path
constexpr double kPortableSelect = 70e-6;    // without clusters
constexpr double kHidden = 0.6;              // share of the other parts that speculative recall hides behind
constexpr double kPeerSum = 3.0e-6;          // rows by a kernel over peers, with residual and norm
constexpr double kMaxPeerBytes = 2 << 20;
constexpr double kFarReduce = 5.7e-6;  // more for each doubling of ranks beyond two: 21 us on eight (8 H100)

double seconds_of(double bytes, double rate) {
  return bytes / rate;
}

bool speculates(const Plan& plan) {
  return plan.reuses();
}

// Layers that have a selection, of `layers`.
double selecting_layers(const StepSetup& s, double layers) {
  if (!s.plan || !s.plan->selects()) return 0;
  return layers * s.plan->compressed_layers() / real(s.config.n_layers);
}

// That at least one of the gates of a layer asks for a correction.
double corrects(const StepSetup& s) {
  const Plan& plan = *s.plan;
  const double gates = plan.keeps() ? 1.0 : real(s.config.n_kv_heads) / s.ranks;
  return 1.0 - std::pow(1.0 - s.correction, gates * real(s.sequences));
}

double selection_seconds(const StepSetup& s, const Card& card, double layers, double index_bytes) {
  const Plan& plan = *s.plan;
  const auto rows = real(s.sequences);
  double layer = kSelectRow * rows;
  const double scan = index_bytes / layers / rows;  // of one sequence
  if (s.store == KvStore::kHost && plan.rules.unit_tokens == 1 && !plan.lists) layer += kTokens;
  if (plan.mass_gate()) layer += kMassGate;
  if (!card.hopper_kernels) layer += kPortableSelect;
  if (speculates(plan)) {
    if (!s.fused) layer += kUnfused;
    return layers * (layer + corrects(s) * (kCorrect + scan / kScanRate));
  }
  if (!s.fused && plan.rules.unit_tokens > 1) layer += kUnfusedEveryStep;
  return layers * (layer + kSelect + scan / kScanEveryStep);
}

// Bytes over one rank's link in a step.
double recalled_bytes(const StepSetup& s, double layers) {
  const Plan& plan = *s.plan;
  const double units =
      std::max(0.0, real(std::min<std::int64_t>(plan.rules.budget, s.context)) - plan.rules.sink - plan.rules.recent);
  const double heads = real(plan.selection_heads()) / s.ranks;
  const double token = kv_layer_token_bytes(s) / real(s.config.n_kv_heads);
  // A selection that is kept changes where its gate says so, a speculative one at every step.
  const double changes = plan.keeps() ? s.correction * s.turnover : s.turnover;
  return layers * heads * units * changes * token * real(s.sequences);
}

}  // namespace

std::string_view StepParts::bound() const {
  const std::array<std::pair<double, std::string_view>, 7> parts = {{{weights, "weights"},
                                                                     {attention, "attention"},
                                                                     {index, "index"},
                                                                     {launches, "launches"},
                                                                     {selection, "selection"},
                                                                     {recall, "recall"},
                                                                     {reduce, "all-reduce"}}};
  return std::max_element(parts.begin(), parts.end())->second;
}

double reduce_seconds(const Card& card, std::int32_t ranks, double bytes) {
  if (ranks == 1) return 0;
  const double share = 2.0 * (ranks - 1) / ranks;  // of the bytes that each link carries, 1 for two ranks
  return card.reduce_seconds + kFarReduce * std::log2(ranks / 2.0) + share * bytes / card.reduce_rate;
}

double row_sum_seconds(const Card& card, std::int32_t ranks, double bytes) {
  const double sent = bytes * (ranks - 1);
  if (ranks == 1 || ranks > kMaxPeers || card.peer_rate == 0 || sent > kMaxPeerBytes)
    return reduce_seconds(card, ranks, bytes);
  return kPeerSum + sent / card.peer_rate;
}

double kv_layer_token_bytes(const StepSetup& s) {
  return real(kv_token_bytes(s.kv_dtype, static_cast<std::int32_t>(s.config.head_dim)) * s.config.n_kv_heads);
}

StepReads step_reads(const StepSetup& s) {
  const double token = kv_layer_token_bytes(s);
  const auto all = real(s.context), sequences = real(s.sequences);
  const std::int64_t layers = s.layers > 0 ? s.layers : s.config.n_layers;
  StepReads reads;
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto layer = static_cast<std::int32_t>(l);
    const std::int64_t window = s.config.window_of(l);
    const double seen = window > 0 ? std::min(all, real(window)) : all;
    const bool less = s.plan && (s.plan->compressed(layer) || (s.plan->drops() && !s.plan->dense[layer]));
    reads.kv += less ? std::min(seen, real(s.plan->budget())) : seen;
    if (less && s.plan->selects()) reads.index += seen * s.plan->index_bytes_per_token();
  }
  reads.kv *= token * sequences;
  reads.index *= real(s.config.n_kv_heads) * sequences;
  return reads;
}

StepParts step_parts(const StepSetup& s, const Card& card) {
  const auto layers = real(s.layers > 0 ? s.layers : s.config.n_layers);
  const double stage = layers / real(s.config.n_layers);
  const auto rows = real(s.sequences);
  const StepReads reads = step_reads(s);

  StepParts parts;
  parts.weights = seconds_of(s.step_weight_bytes * stage / s.ranks, card.memory_rate);
  parts.launches = layers * ((card.hopper_kernels ? kLayer : kLayerPortable) + rows * kLayerRow);
  // Residuals are summed in f32, twice a layer.
  parts.reduce = 2 * layers * row_sum_seconds(card, s.ranks, 4.0 * real(s.config.hidden) * rows);
  const bool retrieves = s.plan && s.plan->selects();
  const bool keeps_window = s.plan && !s.plan->drops();
  if (s.store == KvStore::kHost && !retrieves && !keeps_window) {
    // Everything that is attended crosses the link in every step.
    parts.link_bytes = reads.kv / s.ranks;
    parts.attention = seconds_of(parts.link_bytes, card.link_rate);
    return parts;
  }
  parts.attention = seconds_of(reads.kv / s.ranks, card.memory_rate);
  parts.index = seconds_of(reads.index / s.ranks, card.memory_rate);
  if (s.plan) parts.launches += layers * kRegion;
  const double selecting = selecting_layers(s, layers);
  if (selecting == 0) return parts;
  parts.selection = selection_seconds(s, card, selecting, reads.index / s.ranks);
  if (s.store == KvStore::kDevice) return parts;
  parts.link_bytes = recalled_bytes(s, selecting);
  const double recall = seconds_of(parts.link_bytes, card.link_rate);
  if (!speculates(*s.plan)) {
    parts.recall = recall;
    return parts;
  }
  parts.recall = s.correction * recall + std::max(0.0, (1.0 - s.correction) * recall - kHidden * parts.total());
  return parts;
}

}  // namespace mneme

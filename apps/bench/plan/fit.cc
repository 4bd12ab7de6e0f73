#include "apps/bench/plan/fit.h"

#include <algorithm>

#include "apps/bench/step_cost.h"
#include "src/base/ratio.h"
#include "src/model/shapes.h"
#include "src/recipes/recipe.h"

namespace mneme {
namespace {

// The CUDA context, cuBLASLt's workspace, graphs: what a card does not give to weights and caches.
constexpr double kReserved = 2.5e9;
// Cache slots of a selection, beside those that it selects: what was selected before and may be again.
constexpr double kSpareSlots = 1.5;
// One send and receive of hidden rows between hosts: latency of Ethernet with RDMA, and its rate.
constexpr double kSendSeconds = 20e-6, kSendRate = 12e9;

std::int64_t share_of(std::int64_t all, std::int64_t parts) {
  return (all + parts - 1) / parts;
}

// Tokens that a sequence stores, over its layers. On one GPU layers with a window keep the window.
double stored_tokens(const FitSetup& f) {
  const StepSetup& s = f.step;
  const auto layers = real(s.config.n_layers), all = real(s.context);
  if (s.plan && s.plan->drops()) return layers * std::min(real(s.plan->budget()), all);
  const bool whole = s.ranks > 1 || f.stages > 1;
  const KvWindows windows = whole ? KvWindows{} : kv_windows_of(s.config);
  const auto of_window = std::min(all, real(windows.most_pages(f.chunk_tokens) * kPageTokens));
  return (layers - windows.n_layers()) * all + windows.n_layers() * of_window;
}

}  // namespace

Footprint footprint(const FitSetup& f) {
  const StepSetup& s = f.step;
  const double gpus = real(s.ranks) * f.stages;
  const auto sequences = real(s.sequences), tokens = real(s.context) * sequences;
  const double token = kv_layer_token_bytes(s);
  const bool selects = s.plan && s.plan->selects();
  const double selecting = selects ? real(s.plan->compressed_layers()) : 0;

  Footprint out;
  out.weights = f.weight_bytes / gpus;
  const double stored = stored_tokens(f) * sequences;
  if (selects) out.index = tokens * real(s.config.n_kv_heads) * s.plan->index_bytes_per_token() * selecting;
  if (s.store == KvStore::kDevice) {
    out.kv = stored * token / gpus;
  } else {
    out.host_kv = stored * token / f.stages;
    // Layers in which nothing is selected lie on the device.
    out.kv = selects ? (stored - selecting * tokens) * token / gpus : 0;
    const double held = selects ? real(std::min<std::int64_t>(s.plan->budget(), s.context)) : 0;
    out.slots = held * kSpareSlots * token * selecting * sequences / gpus;
  }
  out.index /= gpus;
  const std::int64_t rows = std::max<std::int64_t>(f.chunk_tokens, s.sequences);
  out.activations = kReserved + real(activation_estimate(s.config, rows, s.sequences)) / s.ranks;
  return out;
}

bool fits(const FitSetup& f, const Card& card) {
  const Footprint out = footprint(f);
  return out.device() <= card.memory_bytes && (f.host_memory_bytes == 0 || out.host_kv <= f.host_memory_bytes);
}

std::int64_t most_sequences(FitSetup f, const Card& card) {
  constexpr std::int64_t kMost = 1 << 16;
  std::int64_t low = 0, high = kMost;  // low fits, or is 0
  while (low < high) {
    f.step.sequences = (low + high + 1) / 2;
    fits(f, card) ? low = f.step.sequences : high = f.step.sequences - 1;
  }
  return low;
}

Throughput throughput(const FitSetup& f, const Card& card) {
  StepSetup stage = f.step;
  stage.layers = share_of(f.step.config.n_layers, f.stages);
  stage.sequences = share_of(f.step.sequences, f.stages);
  Throughput out{.step = step_parts(stage, card)};
  const double rows = 2.0 * real(f.step.config.hidden * stage.sequences);
  const double send = f.stages == 1 ? 0 : kSendSeconds + rows / kSendRate;
  out.token_seconds = (out.step.total() + send) * f.stages;
  // One sequence is in one stage at a time; several keep as many stages busy.
  const auto busy = real(std::min<std::int64_t>(f.stages, f.step.sequences));
  const double in_flight = std::min(real(stage.sequences) * busy, real(f.step.sequences));
  out.tokens_per_second = in_flight / out.token_seconds;
  return out;
}

}  // namespace mneme

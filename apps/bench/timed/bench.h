// Timed steps of a model at a given depth, without engine, sampler or text.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/bench/bandwidth.h"
#include "apps/bench/machine.h"
#include "apps/bench/step_cost.h"
#include "apps/bench/timed/samples.h"
#include "src/model/model.h"

namespace mneme {

struct BenchOptions {
  DType kv_dtype = DType::kBF16;
  std::int32_t steps = 64;           // decode: timed steps. prefill: whole prompts
  std::int32_t warmup = 4;           // decode: untimed steps before them
  std::int32_t chunk_tokens = 1024;  // prefill: tokens a step
  bool keep_spans = false;           // for a trace
  bool phases = false;               // decode on a device: as many steps again, timed by phase
  bool host_pages = false;           // on a device: keys and values in host memory
  bool batch_invariant = false;      // on a device: CudaForwardOptions::batch_invariant
  Collective* ranks = nullptr;       // that share the model (src/model/ranks); all measure the same cases
};

struct BenchCase {
  std::int32_t depth = 0;  // decode: tokens in each cache before the first step. prefill: tokens of each prompt
  std::int32_t batch = 1;  // sequences, of different content
  std::shared_ptr<const Plan> plan;  // decode: the compiled method; null: full attention
  // On a device, with random weights: injected turnover (share of selected units that a step replaces) and injected
  // rate of corrected KV heads. Below 0: not injected.
  float turnover = -1, correction = -1;
};
// Untimed steps before those that BenchOptions::phases asks for: two make the graph again.
inline constexpr std::int32_t kPhaseWarmup = 3;

// One timed step, for a trace.
struct StepTrace {
  OpTimer::Clock::time_point begin, end;
  std::vector<OpTimer::Span> spans;
};

// Bytes held when a case was done.
struct HeldMemory {
  std::int64_t kv = 0, method = 0, activation = 0;
  std::int64_t device = 0;  // of a device's memory, in use by all programs
};

// Decode on a device, per step: selected units, misses, units fetched from host memory and their bytes, share of gates
// that flagged.
struct RecallCounts {
  double selected_units = 0, missing_units = 0, recalled_units = 0, recalled_bytes = 0, correction_rate = 0;
};

struct BenchResult {
  Quantiles step;                // seconds per step
  Quantiles prompt;              // prefill: seconds per prompt (the whole batch)
  double tokens_per_second = 0;  // of all sequences, at the median (decode: step, prefill: prompt)
  double tokens_per_second_deviation = 0;
  StepCost cost;  // decode: of the mean step. prefill: of all prompts of the batch once
  double bandwidth = 0,
         l3_bandwidth = 0;   // bytes per second, measured around the steps; l3 0: the model exceeds the L3
  double gemm_rate = 0;      // prefill: operations per second, measured before the steps
  double floor_seconds = 0;  // of `cost`
  double share = 0;          // floor over median; 1 is the limit
  std::array<double, kOps.size()> operations{};  // seconds, decode: of the median step. prefill: of the median prompt
  // Decode on a device, with BenchOptions::phases: mean seconds of a step by phase (src/model/cuda/step_phases.h). Their
  // sum is more than `step`: a step that is timed by phase overlaps no kernels of its main stream.
  std::vector<std::pair<std::string_view, double>> phases;
  HeldMemory memory;
  double attended_tokens = 0;  // decode: of a sequence, mean over layers and heads
  RecallCounts recall;
  double selected_share = 0;       // decode: share of selecting heads that selected in the same step
  double prefill_end_seconds = 0;  // prefill: of the median prompt, the time to decide what is dropped
  std::vector<StepTrace> trace;
};

class Bench {
 public:
  // Requires  the model and the context outlive it.
  Bench(const Model& model, const CpuContext& context, const Machine& machine, const BenchOptions& options);
  ~Bench();

  // Fills caches with random keys and values; every step then appends a random token to each.
  // Errors  kResource: out of memory for the caches.
  BenchResult decode(const BenchCase& c);
  // Random tokens, in chunks split evenly among the sequences.
  BenchResult prefill(const BenchCase& c);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Standard normal keys and values for positions [0, length) of every layer and head.
void fill_random(SequenceCache& cache, std::int32_t length, std::uint64_t seed, ThreadPool& pool);

}  // namespace mneme

// Steps of a model at a depth, timed: no engine, no sampler, no text.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/model.h"
#include "src/perf/bandwidth.h"
#include "src/perf/machine.h"
#include "src/perf/samples.h"
#include "src/perf/step_cost.h"

namespace mneme {

struct BenchOptions {
  DType kv_dtype = DType::kBF16;
  std::int32_t steps = 64;           // decode: timed steps. prefill: whole prompts
  std::int32_t warmup = 4;           // decode: steps before them
  std::int32_t chunk_tokens = 1024;  // prefill: tokens a step
  bool keep_spans = false;           // for a trace
  bool host_pages = false;           // on a device: keys and values in host memory
};

struct BenchCase {
  std::int32_t depth = 0;  // decode: tokens in each cache before the first step. prefill: tokens of each prompt
  std::int32_t batch = 1;  // sequences, of different content
  std::shared_ptr<const Plan> plan;  // decode: how rows attend; null: everything
  // On a device, where weights are random: the share of the selected units that a step replaces, and of KV heads that
  // are corrected, are drawn at these rates. Below 0: they are what they are.
  float turnover = -1, correction = -1;
  // On a device, of methods that select (but for merged and gather, at every step): how missing pages come from the
  // host, one of kRecallNames.
  std::string recall = "merged";
};
// By the device itself, while pages that are there are attended, or before; by the host, a copy a page and KV head;
// these in one call; the same with tokens' KV heads side by side; through one buffer, and through two. RecallBy's.
inline constexpr std::array<std::string_view, 7> kRecallNames = {"merged",      "gather", "copies",      "batch",
                                                                 "token-major", "staged", "staged-twice"};

// One timed step, for a trace.
struct StepTrace {
  OpTimer::Clock::time_point begin, end;
  std::vector<OpTimer::Span> spans;
};

struct BenchResult {
  Quantiles step;                // seconds a step
  Quantiles prompt;              // prefill: seconds a whole prompt (all of the batch)
  double tokens_per_second = 0;  // of all sequences, at the median (decode: step, prefill: prompt)
  double tokens_per_second_deviation = 0;
  StepCost cost;                           // decode: of the mean step. prefill: of all prompts of the batch once
  double bandwidth = 0, l3_bandwidth = 0;  // bytes a second, measured around the steps; l3 0: the model does not fit
  double product_rate = 0;                 // prefill: operations a second, measured before the steps
  double floor_seconds = 0;                // of `cost`
  double share = 0;                        // floor over median, 1 is as fast as can be
  std::array<double, kOps.size()> operations{};  // seconds, decode: of the median step. prefill: of the median prompt
  std::int64_t kv_bytes = 0, method_bytes = 0, activation_bytes = 0;
  std::int64_t device_bytes = 0;  // of a device's memory, in use by all programs when the case was done
  double attended_tokens = 0;     // decode: of a sequence, mean over layers and heads
  // Decode on a device, a step: units that methods chose, those of them that were not in their slots, what came from
  // host memory and its bytes, and the share of gates that flagged.
  double chosen_units = 0, missing_units = 0, recalled_units = 0, recalled_bytes = 0, correction_rate = 0;
  double selected_share = 0;       // decode: of the heads that read a selection, those that made it in the same step
  double prefill_end_seconds = 0;  // prefill: of the median prompt's, what deciding what stays of it took
  std::vector<StepTrace> trace;
};

class Bench {
 public:
  // Requires  the model and the context outlive it.
  Bench(const Model& model, const CpuContext& context, const Machine& machine, const BenchOptions& options);
  ~Bench();

  // Caches are filled with random keys and values; every step then adds a random token to each.
  // Errors  kResource: no room for the caches.
  BenchResult decode(const BenchCase& c);
  // Random tokens, in chunks shared evenly by the sequences.
  BenchResult prefill(const BenchCase& c);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Standard normal keys and values for positions [0, length) of every layer and head.
void fill_random(SequenceCache& cache, std::int32_t length, std::uint64_t seed, ThreadPool& pool);

}  // namespace mneme

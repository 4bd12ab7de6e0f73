// What a model, its requests and a method take of each GPU's memory and of the host's, and how many sequences fit.
#pragma once

#include <cstdint>

#include "apps/bench/plan/step_model.h"

namespace mneme {

// Bytes of one GPU (the last is of the host, for all its GPUs).
struct Footprint {
  double weights = 0, kv = 0, index = 0, slots = 0, activations = 0;
  double host_kv = 0;

  double device() const { return weights + kv + index + slots + activations; }
};

struct FitSetup {
  StepSetup step;
  double weight_bytes = 0;  // all of them
  std::int32_t stages = 1;  // of a pipeline over hosts
  std::int32_t chunk_tokens = 1024;
  double host_memory_bytes = 0;  // of one host; 0: as much as is needed
};

Footprint footprint(const FitSetup& setup);
bool fits(const FitSetup& setup, const Card& card);
// The most sequences that fit; 0: not even one.
std::int64_t most_sequences(FitSetup setup, const Card& card);

// Of all GPUs together: `sequences` are shared out over the stages of a pipeline, which work on one share each.
struct Throughput {
  StepParts step;            // of one stage and its share
  double token_seconds = 0;  // between two tokens of a sequence
  double tokens_per_second = 0;
};
Throughput throughput(const FitSetup& setup, const Card& card);

}  // namespace mneme

// The time of a decode step from rates: a sum of what is read, launched, selected and fetched, with terms that were
// fitted to one H200. docs/design/planning.md has them with their errors; a test compares every recorded step.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "apps/bench/plan/cards.h"
#include "src/formats/model_config.h"
#include "src/recipes/compile.h"
#include "src/tensor/dtype.h"

namespace mneme {

enum class KvStore : std::uint8_t { kDevice, kHost };

struct StepSetup {
  ModelConfig config;
  double step_weight_bytes = 0;      // that a step of one row reads, all ranks together
  std::shared_ptr<const Plan> plan;  // null: full attention
  KvStore store = KvStore::kDevice;
  DType kv_dtype = DType::kBF16;
  bool fused = true;         // the device has a fused selection for the plan
  std::int64_t context = 0;  // tokens of each sequence
  std::int64_t sequences = 1;
  double turnover = 0.2;    // share of selected units that a step replaces
  double correction = 0.1;  // share of speculative selections that are made again
  std::int32_t ranks = 1;   // tensor parallel
  std::int64_t layers = 0;  // of a pipeline's stage; 0: all
};

// Seconds of one rank; `recall` is what of it is not hidden behind the rest.
struct StepParts {
  double weights = 0, attention = 0, index = 0;  // reading
  double launches = 0;                           // kernels, and rows beyond the first
  double selection = 0, recall = 0, reduce = 0;
  double link_bytes = 0;  // a step and rank, from the host

  double total() const { return weights + attention + index + launches + selection + recall + reduce; }
  // "weights", "attention", ...: the largest part.
  std::string_view bound() const;
};

StepParts step_parts(const StepSetup& setup, const Card& card);

// Bytes of a token's keys and values in one layer.
double kv_layer_token_bytes(const StepSetup& setup);

// Bytes that a step reads of keys and values, and of the index, over all ranks.
struct StepReads {
  double kv = 0, index = 0;
};
StepReads step_reads(const StepSetup& setup);

// An all-reduce over so many GPUs, by NCCL.
double reduce_seconds(const Card& card, std::int32_t ranks, double bytes);
// A sum of rows in a step: few of them over the GPUs' memory.
double row_sum_seconds(const Card& card, std::int32_t ranks, double bytes);

}  // namespace mneme

// Forward pass on a CUDA device. A step in which every sequence has one row is one CUDA graph; steps with prompts are
// launched kernel by kernel. No kernel waits for the host between layers, and after the first steps of a shape nothing
// is allocated.
//
// Keys and values are in pages (a pool made by make_pool()): in device memory, or in host memory that the device
// accesses in place. Full attention over pages in host memory is exact, at the speed of the link. Methods that select
// attend units in cache slots on the device (retrieval.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/progress.h"
#include "src/kv/page_pool.h"
#include "src/model/cuda/retrieval/retrieval.h"
#include "src/model/cuda/step_phases.h"
#include "src/model/cuda/weights.h"
#include "src/model/model.h"
#include "src/ops/sampling/sample_cuda.h"

namespace mneme {

class DeviceCollective;

enum class KvStore : std::uint8_t { kDevice, kHost };

struct CudaForwardOptions {
  std::int32_t max_rows = 1024;     // per step
  std::int32_t max_sequences = 16;  // per step
  std::int64_t max_context = 0;     // tokens per sequence
  KvStore store = KvStore::kDevice;
  DType kv_dtype = DType::kBF16;  // of make_pool()'s shape
  float spare = 0.5f;             // for sequences with a method: CudaFit::spare
  // Cache slots of pages and the layers of a prompt in host pages take free device memory too, of which nothing else is
  // needed after make_pool() than what the steps do (CudaRetrievalSetup::free_bytes, CudaStaging::select_prompt()).
  bool grow_slots = false;
  // Every n-th decode step of a sequence also computes the true attention and records how much of it the method
  // covered; 0: never.
  std::int32_t audit_every = 0;
  // With the ranks that share the model, whose part `model` is (rank_checkpoint or stage_checkpoint); where they share
  // heads, the weights' head is a part too (vocabulary_range). Null: it is whole. Outlives the pass.
  DeviceCollective* ranks = nullptr;
  RankSplit split = RankSplit::kHeads;
};

// A row's next token, and its log-probability.
struct TokenSample {
  std::int32_t token = -1;
  float logprob = 0;
};

class CudaForward {
 public:
  // Errors  kUnsupported: a head size or group that the device's attention does not support. kResource: no memory for
  //         the activations. kDevice.
  CudaForward(const Model& model, CudaWeights weights, Stream stream, const CudaForwardOptions& options);
  ~CudaForward();

  // Allocates blocks where CudaForwardOptions::store says; run() takes only sequences of this pool. Call at most once.
  // Errors  kResource.
  std::unique_ptr<PagePool> make_pool(const KvShape& shape, std::int64_t n_blocks, const ProgressFn& progress = {});
  // Call before make_pool().
  void set_store(KvStore store);
  // Free device memory for blocks, less a reserve for graphs and libraries.
  std::int64_t room_bytes() const;

  // As Forward::run. Requires  at most max_rows tokens of at most max_sequences sequences.
  //
  // Methods that select share one allocation: a step with a method that needs other layers or more cache slots
  // reallocates it and refills everything.
  // Errors  kResource. RanksStopped: another rank failed; no later step succeeds.
  ConstTensorView run(const ForwardInput& input);
  // The same, returning tokens sampled on the device instead of logits. `rules`: one per row of logits; none: argmax.
  // Valid until the next call.
  std::span<const TokenSample> sample(const ForwardInput& input, std::span<const SamplingRule> rules = {});

  const CudaWeights& weights() const;
  const Stream& stream() const;
  // Device time of the last step in seconds.
  double device_seconds() const;
  // From the next step on, steps in which every sequence has one row are timed by phase (step_phases.h), and their
  // kernels run one after another. Graphs are captured again.
  void time_phases(bool on);
  // The times of the last step; zeros where it was not timed.
  PhaseClock::Seconds phase_seconds() const;
  std::size_t activation_bytes() const;
  // Device address of the blocks, to fill them in benchmarks.
  std::byte* kv_data() const;
  std::size_t kv_bytes() const;
  // The largest result that so many ranks exchange in a step.
  static std::size_t rank_message_bytes(const ModelConfig& config, const CudaForwardOptions& options, int n_ranks);
  // From the next step on, `observer` launches between the kernels of steps; null: nothing does. It outlives those steps.
  // Graphs are captured again.
  void observe(StepObserver* observer);
  // Device memory of methods.
  struct MethodBytes {
    std::size_t all = 0, slots = 0, index = 0, dense_layers = 0;
  };
  MethodBytes method_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme

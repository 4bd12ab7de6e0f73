// The forward pass on a CUDA device. Steps in which every sequence has one row are one graph, launched whole; steps
// with prompts in them launch kernel by kernel. Nothing waits for the host between layers, and after the first steps of
// a shape nothing is allocated.
//
// Keys and values lie in pages (KvShape's blocks, in a pool made by make_pool()): on the device, or in host memory that
// the device reads and writes where it lies. Full attention over pages in host memory is exact, and as fast as the
// link. Methods that select attend copies on the device (cuda_retrieval.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/progress.h"
#include "src/cache/page_pool.h"
#include "src/kernels/sample_cuda.h"
#include "src/model/cuda_retrieval.h"
#include "src/model/cuda_weights.h"
#include "src/model/model.h"

namespace mneme {

enum class KvStore : std::uint8_t { kDevice, kHost };

struct CudaForwardOptions {
  std::int32_t max_rows = 1024;     // of one step
  std::int32_t max_sequences = 16;  // of one step
  std::int64_t max_context = 0;     // tokens of a sequence
  KvStore store = KvStore::kDevice;
  // Of sequences with a method, see CudaRetrievalOptions.
  float spare = 0.5f, turnover = -1, correction = -1;
  std::int32_t recall_blocks = 8;
  RecallBy recall_by = RecallBy::kMerged;
  // Every n-th decode step of a sequence also computes the true attention and records how much its method had of it; 0:
  // never.
  std::int32_t audit_every = 0;
  // For tests: every choice and recall waits up to so long before it begins.
  std::int32_t delay_us = 0;
};

// A row's next token, and its log-probability.
struct TokenChoice {
  std::int32_t token = -1;
  float logprob = 0;
};

class CudaForward {
 public:
  // Errors  kUnsupported: a head size or group that the device's attention does not take. kResource: no room for the
  // activations. kDevice.
  CudaForward(const Model& model, CudaWeights weights, Stream stream, const CudaForwardOptions& options);
  ~CudaForward();

  // Blocks where CudaForwardOptions::store says; the pool is the only one that run() takes sequences of. At most once.
  // Errors  kResource.
  std::unique_ptr<PagePool> make_pool(const KvShape& shape, std::int64_t n_blocks, const ProgressFn& progress = {});
  // Before make_pool().
  void set_store(KvStore store);
  // Device memory that is free for blocks, some left aside for graphs and libraries.
  std::int64_t room_bytes() const;

  // Errors  kUnsupported: the device cannot do what the method asks for, or not in a step with those of `beside`.
  static void expect_method(const Plan& plan, std::span<const Plan* const> beside = {});

  // Errors  kUnsupported: the device cannot score with the prompt's question, as the method would.
  static void expect_question(const Plan& plan);

  // As Forward::run. Requires  at most max_rows tokens of at most max_sequences sequences; methods pass
  // expect_method(). Those that select share one device memory: a step with a method for which it has other layers or
  // too few slots takes it anew (and everything else is filled in again).
  // Errors  kResource.
  ConstTensorView run(const ForwardInput& input);
  // The same, with the tokens that `rules` (one for each row of logits; none: the most likely) draw in place of the
  // logits, which stay on the device. Valid until the next call.
  std::span<const TokenChoice> choose(const ForwardInput& input, std::span<const DrawRule> rules = {});

  const CudaWeights& weights() const;
  const Stream& stream() const;
  // Seconds that the device worked on the last step.
  double device_seconds() const;
  std::size_t activation_bytes() const;
  // Bytes of the blocks by the device's address, to fill them for measuring.
  std::byte* kv_data() const;
  std::size_t kv_bytes() const;
  // For measuring: outcomes of methods are drawn from the next step on, see SlotRules.
  void draw_outcomes(float turnover, float correction, RecallBy recall_by = RecallBy::kMerged);
  // What methods take of the device; null before the first step with one.
  const CudaRetrieval* retrieval() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme

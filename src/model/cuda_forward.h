// The forward pass on a CUDA device. Steps in which every sequence has one row are one graph, launched whole; steps
// with prompts in them launch kernel by kernel. Nothing waits for the host between layers, and after the first steps of
// a shape nothing is allocated.
//
// Full attention over pages on the device (KvShape's blocks, in a pool made by make_pool()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/cache/page_pool.h"
#include "src/model/cuda_weights.h"
#include "src/model/model.h"

namespace mneme {

struct CudaForwardOptions {
  std::int32_t max_rows = 1024;     // of one step
  std::int32_t max_sequences = 16;  // of one step
  std::int64_t max_context = 0;     // tokens of a sequence
};

// The most likely token of a row, and its log-probability.
struct GreedyChoice {
  std::int32_t token = -1;
  float logprob = 0;
};

enum class LogitsWanted { kAll, kBestOnly };

class CudaForward {
 public:
  // Errors  kUnsupported: a head size or group that the device's attention does not take. kResource: no room for the
  // activations. kDevice.
  CudaForward(const Model& model, CudaWeights weights, Stream stream, const CudaForwardOptions& options);
  ~CudaForward();

  // Blocks on the device; the pool is the only one that run() takes sequences of. At most once.
  // Errors  kResource.
  std::unique_ptr<PagePool> make_pool(const KvShape& shape, std::int64_t n_blocks);
  // Device memory that is free for blocks, some left aside for graphs and libraries.
  std::int64_t room_bytes() const;

  // As Forward::run. Requires  no sequence has a method; at most max_rows tokens of at most max_sequences sequences.
  // kBestOnly leaves the logits on the device: the view is empty, and best() has a choice for each of its rows.
  ConstTensorView run(const ForwardInput& input, LogitsWanted wanted = LogitsWanted::kAll);
  std::span<const GreedyChoice> best() const;

  const CudaWeights& weights() const;
  const Stream& stream() const;
  // Seconds that the device worked on the last step.
  double device_seconds() const;
  std::size_t activation_bytes() const;
  // Bytes of the blocks, to fill them for measuring.
  std::byte* kv_data() const;
  std::size_t kv_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mneme

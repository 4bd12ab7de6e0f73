// How the engine gets a forward pass on a device: the backend that a build with CUDA registers.
#pragma once

#include <memory>

#include "mneme/options.h"
#include "src/engine/forward_pass.h"

namespace mneme {

class Collective;

struct ForwardBackend {
  // ranks: those that share the model, of which `model` is a part (rank_checkpoint); null: it is whole.
  //
  // Errors  kDevice: no device; the message says why. kUnsupported: a shape that its kernels do not take. kResource: no
  //         room for the weights.
  std::unique_ptr<ForwardPass> (*make)(std::unique_ptr<Model> model, const EngineOptions& options, Collective* ranks,
                                       RankSplit split);
};

// Errors  kOption: speculation, which no device runs; deterministic with steps too small or too large for a device
void check_device_options(const EngineOptions& options);

}  // namespace mneme

// The engine's side of the forward pass on a CUDA device.
#pragma once

#include <memory>

#include "mneme/options.h"
#include "src/engine/forward_pass.h"

namespace mneme {

// Errors  kDevice: no device, or a build without CUDA; the message says which. kUnsupported: a shape that its kernels
//         do not take. kResource: no room for the weights.
std::unique_ptr<ForwardPass> cuda_pass(std::unique_ptr<Model> model, const EngineOptions& options);

}  // namespace mneme

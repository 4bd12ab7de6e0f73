// Which form of the kernels the driver loaded: a build may hold several, and a card runs code of older ones.
#pragma once

namespace mneme {

// Compute capability that the kernels loaded on the calling thread's device were compiled for, 10 * major + minor; 0:
// the build has none that the device runs.
int loaded_code_version();

}  // namespace mneme

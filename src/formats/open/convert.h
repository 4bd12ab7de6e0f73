// Converts a checkpoint to GGUF with another weight type.
#pragma once

#include <cstdint>
#include <filesystem>

#include "src/base/progress.h"
#include "src/formats/checkpoint.h"
#include "src/tensor/dtype.h"

namespace mneme {

struct ConvertResult {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;  // of the output file
  // Matrices whose rows are not a multiple of the type's block, in bf16, or in `narrower` where theirs is a multiple of 32.
  std::int64_t kept_in_bf16 = 0;
  std::int64_t in_narrower = 0;
  DType narrower = DType::kBF16;
};

// Converts matrices to `type` and vectors (norms, biases) to f32. A matrix that has the type already is copied. Rows of
// q and k are permuted to the order of the architecture's GGUF files. Metadata that does
// not describe the computation (general.license, ...) is copied. The file appears only when it is complete.
//
// Requires  can_quantise_to(type).
// Errors    kFile: the output cannot be written.
ConvertResult convert_to_gguf(const Checkpoint& from, const std::filesystem::path& to, DType type,
                              const ProgressFn& progress = {});

}  // namespace mneme

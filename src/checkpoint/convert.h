// Writes a checkpoint as GGUF with its matrices in another type.
#pragma once

#include <cstdint>
#include <filesystem>

#include "src/base/progress.h"
#include "src/checkpoint/checkpoint.h"
#include "src/tensor/dtype.h"

namespace mneme {

struct ConvertResult {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;        // of the file
  std::int64_t kept_in_bf16 = 0;  // matrices whose rows do not fill the blocks of a quantised type
};

// Matrices become `type`; vectors (norms, biases) f32. A matrix that has the type already is copied as it is. Rows of q
// and k are put into the order that the architecture has in GGUF files. The file appears only when it is complete.
//
// Requires  type: f32, f16, bf16, q8_0, q4_0.
// Errors    kFile: the output cannot be written
ConvertResult convert_to_gguf(const Checkpoint& from, const std::filesystem::path& to, DType type,
                              const ProgressFn& progress = {});

}  // namespace mneme

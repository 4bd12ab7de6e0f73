// Weights of a folder whose values or rows are not those of GGUF: changed, gathered, or parts of a stack.
#pragma once

#include <string_view>
#include <vector>

#include "src/formats/safetensors/quantised.h"

namespace mneme {

struct ChangedWeight {
  Buffer values;         // f32; empty where the view is of the file
  ConstTensorView view;  // [n_out] or [n_out, n_in]
};

// The values under weight.change.   Requires  weight.change is not kNone
// Errors  kFormat: another shape or type than expected (named)
ChangedWeight change_weight(const WeightSpec& weight, const SafetensorsTensor& tensor, std::string_view file);

// The rows of in_proj_qkvz that are the weight's, whatever type the folder has it in.   Requires  kQkv or kZ
// Errors  as repack_quantised()
RepackedMatrix gather_rows(const QuantConfig& quantisation, const DeltaConfig& delta, const WeightSpec& weight,
                           FindTensor find, std::string_view file, ThreadPool& pool);

// Adds the matrices of a stack's experts, views of the file.   Requires  kAllOutputs, kFirstOutputs or kSecondOutputs
// Errors  kFormat: missing, or another shape or type than expected (named)
void add_expert_views(const WeightSpec& weight, FindTensor find, std::string_view file,
                      std::vector<CheckpointTensor>& to);

}  // namespace mneme

// Quantised matrices of a Hugging Face folder, repacked into the block types that GEMMs read.
//
// Codes keep their values; only their order and the place of scales change. What a format becomes:
//
//   fp8, fbgemm_fp8, compressed-tensors float-quantized      fp8
//   compressed-tensors int-quantized, pack-quantized int8    q8_0 where every scale is an f16, else int8
//   compressed-tensors pack-quantized int4, gptq, awq        q4_0 where every scale is an f16 and every zero point 8,
//                                                            else int4
//   compressed-tensors nvfp4-pack-quantized, modelopt NVFP4  nvfp4
//
// Tensors say how a matrix is stored, not lists of exceptions: those of modelopt leave some out.
//
// Scales of activations (`input_scale`, ...) are not read: activations stay in 16 bits.
//
// Source  compressed-tensors, AutoAWQ, AutoGPTQ and GPTQModel; the integration of transformers for fp8
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/function_ref.h"
#include "src/base/thread_pool.h"
#include "src/formats/json.h"
#include "src/formats/safetensors/safetensors.h"
#include "src/formats/weight_names.h"
#include "src/tensor/buffer.h"

namespace mneme {

enum class QuantMethod : std::uint8_t { kNone, kFp8, kCompressedTensors, kGptq, kAwq, kMxfp4, kModelOpt };

// How gptq stores zero points z, eight nibbles a word: as they are (gptq_v2); z - 1 with the borrows of one subtraction
// from the word (GPTQModel, which says so under meta.quantizer); or z - 1 modulo 16 in each nibble (as exllamav2 and
// AutoGPTQ 0.7.1 read). The last two differ only beside a zero point of 0.
enum class GptqZeros : std::uint8_t { kAsTheyAre, kOneLessByWord, kOneLessByNibble };

// `quantization_config` of config.json, as far as tensors do not say it themselves.
struct QuantConfig {
  QuantMethod method = QuantMethod::kNone;
  std::string name = "none";                // quant_method, for errors
  std::array<std::int64_t, 2> block{};      // of scales of fp8, rows by columns; 0: none
  GptqZeros zeros = GptqZeros::kAsTheyAre;  // gptq
  bool zeros_are_known = true;              // false: kOneLessByWord unless the codes tell otherwise
};

// Errors  kUnsupported: methods, formats and widths that are not read (named); kFormat: values that cannot be
QuantConfig read_quant_config(const JsonRef& config);
// Of hf_quant_config.json, where older folders of modelopt have it. Errors  the same.
QuantConfig read_modelopt_config(const JsonRef& file);

// A tensor of the folder by name, which counts as used from then on; null if there is none.
using FindTensor = FunctionRef<const SafetensorsTensor*(const std::string& name)>;

struct RepackedMatrix {
  DType dtype = DType::kF32;
  Buffer blocks;                      // [n_out, n_in] of dtype
  std::vector<std::int32_t> columns;  // column j of the blocks is column columns[j] of the matrix; empty: its own
};

// Repacks `weight` if the folder stores it quantised; nothing if it has no quantised tensors of that name.
//
// Errors  kFormat: a part missing, or of another shape or type than expected; a group index out of range.
//         kUnsupported: columns that do not fill blocks, types that are not read. Each names the tensor.
std::optional<RepackedMatrix> repack_quantised(const QuantConfig& config, const WeightSpec& weight, FindTensor find,
                                               std::string_view file, ThreadPool& pool);

// gptq with z - 1 stored: how many of the zero points that differ between the two ways of packing fit the codes of their
// groups better by nibble, and by word; none where a part is missing or misshapen.
//
// Numerics  weights of a group have a mean near 0, so that its codes have one near the zero point. Only stored nibbles
//           of 3 to 12 and groups whose mean is within 1 of either count: others have weights of mostly one sign, whose
//           mean is on one side of every zero point.
struct GptqEvidence {
  std::int64_t by_nibble = 0, by_word = 0;
  // By word, as transformers reads, unless the others are more by twice the deviation of a coin's throws.
  GptqZeros verdict() const;
};
GptqEvidence gptq_evidence(const WeightSpec& weight, FindTensor find);

// Whether a tensor accompanies quantised weights and is not read.
bool is_unread_scale(std::string_view name);

}  // namespace mneme

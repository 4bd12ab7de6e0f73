// A model on disk: GGUF, or a Hugging Face folder. Untrusted input: every length, offset and shape is checked against
// the file before it is used.
//
// Tensors go by one set of names, GGUF's ("token_embd.weight", "blk.3.attn_q.weight", ...;
// src/checkpoint/weight_names.h has the table), with rows first: [n_out, n_in].
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/model_config.h"
#include "src/checkpoint/tokenizer_data.h"
#include "src/tensor/view.h"

namespace mneme {

struct CheckpointTensor {
  std::string name;      // in our (GGUF's) naming
  ConstTensorView view;  // [n] or [n_out, n_in], into the mapped file
};

// One key of a file's metadata, for `mneme inspect`: long values are cut.
struct MetadataEntry {
  std::string key, type, value;
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // Opens a .gguf file or a folder with config.json, safetensors and tokenizer.json.
  //
  // Errors  kFile      missing, unreadable, neither a file nor a folder of the expected kind
  //         kFormat    damaged: truncated, overlapping, overflowing, contradicting shapes, deep or huge JSON, invalid
  //         UTF-8 kUnsupported  tensor type, architecture, RoPE scaling, tokenizer that this build does not know
  //         (named)
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& path);

  // Only the tokenizer of a GGUF file (vocabulary-only files too), of a Hugging Face folder, or of a tokenizer.json.
  static TokenizerData open_tokenizer(const std::filesystem::path& path);

  virtual const ModelConfig& config() const = 0;
  virtual const TokenizerData& tokenizer() const = 0;
  virtual const std::vector<CheckpointTensor>& tensors() const = 0;  // in file order
  virtual const std::vector<MetadataEntry>& metadata() const = 0;
  virtual std::string_view format() const = 0;  // "GGUF v3", "Hugging Face (safetensors)"

  // Null when the file has no such tensor.
  const CheckpointTensor* find(std::string_view name) const;
  // The tensor of that name and shape. Errors  kFormat: missing, or of another shape (both are named).
  const CheckpointTensor& require(std::string_view name, std::initializer_list<std::int64_t> shape) const;
};

}  // namespace mneme

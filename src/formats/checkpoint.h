// A model on disk: GGUF file or Hugging Face folder. Untrusted input: every length, offset and shape is checked against
// the file before use.
//
// Tensors have GGUF's names ("token_embd.weight", "blk.3.attn_q.weight", ...; the table is in
// src/formats/weight_names.h) and row-major shapes [n_out, n_in].
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/formats/model_config.h"
#include "src/formats/tokenizer_data.h"
#include "src/tensor/view.h"

namespace mneme {

struct CheckpointTensor {
  std::string name;      // GGUF's name
  ConstTensorView view;  // [n] or [n_out, n_in], a view into the mapped file, or of repacked blocks
  // Column j of the view is column columns[j] of the matrix; empty: its own. Only repacked matrices have them.
  std::span<const std::int32_t> columns = {};
};

// A metadata key of a file, for `mneme inspect`; long values are truncated.
struct MetadataEntry {
  std::string key, type, value;
};

// Metadata that does not describe the computation (general.license, general.url, ...), for a converted file.
struct CarriedMetadata {
  std::string key;
  std::string encoded;  // type and value, as a GGUF file holds them behind the key
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // Opens a .gguf file or a folder with config.json, safetensors and tokenizer.json.
  //
  // Errors  kFile         missing, unreadable, or neither a file nor a folder of the expected kind
  //         kFormat       damaged: truncated, overlapping, overflowing, inconsistent shapes, deep or huge JSON,
  //                       invalid UTF-8
  //         kUnsupported  a tensor type, architecture, RoPE scaling or tokenizer that this build lacks (named)
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& path);

  // Opens the tokenizer only: of a GGUF file (vocabulary-only files too), a Hugging Face folder, or a tokenizer.json.
  static TokenizerData open_tokenizer(const std::filesystem::path& path);

  virtual const ModelConfig& config() const = 0;
  virtual const TokenizerData& tokenizer() const = 0;
  virtual const std::vector<CheckpointTensor>& tensors() const = 0;  // in file order
  virtual const std::vector<MetadataEntry>& metadata() const = 0;
  // Entries that convert_to_gguf() copies unchanged; none for Hugging Face folders.
  virtual std::vector<CarriedMetadata> carried_metadata() const { return {}; }
  virtual std::string_view format() const = 0;  // "GGUF v3", "Hugging Face (safetensors)"

  // Null when the file has no such tensor.
  const CheckpointTensor* find(std::string_view name) const;
  // The tensor of that name and shape. Errors  kFormat: missing, or another shape; the message has both.
  const CheckpointTensor& require(std::string_view name, std::initializer_list<std::int64_t> shape) const;
};

}  // namespace mneme

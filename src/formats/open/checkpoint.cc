#include "src/formats/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <system_error>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/base/size32.h"
#include "src/formats/gguf/gguf_checkpoint.h"
#include "src/formats/gguf/gguf_file.h"
#include "src/formats/gguf/gguf_model.h"
#include "src/formats/gguf/gguf_parts.h"
#include "src/formats/safetensors/hf_checkpoint.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/formats/wrong_file.h"

namespace mneme {

namespace {

bool is_folder(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::is_directory(path, none);
}

bool starts_with(const MappedFile& file, std::string_view text) {
  const auto bytes = file.bytes();
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

}  // namespace

std::unique_ptr<Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  if (is_folder(path)) return open_hf(path);
  refuse_name_of_hub(path);
  const std::string extension = path.extension().string();
  if (extension == ".json" || extension == ".safetensors")
    fail(ErrorKind::kFile, "{}: one file of a Hugging Face model; expected its folder, or a GGUF file", path.string());
  return open_gguf(path);
}

TokenizerData Checkpoint::open_tokenizer(const std::filesystem::path& path) {
  if (is_folder(path)) return read_hf_tokenizer(path);
  refuse_name_of_hub(path);
  const MappedFile mapping(path);
  if (!starts_with(mapping, "GGUF") && path.extension() == ".json") return read_hf_tokenizer(path);
  const GgufFile file = GgufFile::parse(mapping.bytes(), path.string(), GgufFile::Tensors::kSkip);
  expect_first_part(file, path);
  return read_gguf_tokenizer(file);
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  for (const CheckpointTensor& t : tensors())
    if (t.name == name) return &t;
  return nullptr;
}

const CheckpointTensor& Checkpoint::require(std::string_view name, std::initializer_list<std::int64_t> shape) const {
  const CheckpointTensor* t = find(name);
  if (t == nullptr) fail(ErrorKind::kFormat, "tensor '{}' is missing", name);
  bool fits = t->view.rank() == size32(shape);
  for (int i = 0; fits && i < t->view.rank(); ++i) {
    const std::int64_t size = shape.begin()[i];
    fits = size == kAnySize || t->view.dim(i) == size;
  }
  if (!fits)
    fail(ErrorKind::kFormat, "tensor '{}': expected [{}], found {}", name, fmt::join(shape, ", "), t->view.to_string());
  return *t;
}

}  // namespace mneme

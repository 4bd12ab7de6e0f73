#include "src/checkpoint/gguf_checkpoint.h"

#include <fmt/format.h>

#include <utility>

#include "src/base/mapped_file.h"
#include "src/checkpoint/gguf_file.h"
#include "src/checkpoint/gguf_model.h"
#include "src/checkpoint/tensor_table.h"
#include "src/checkpoint/tokenizer_check.h"
#include "src/checkpoint/weight_names.h"

namespace mneme {
namespace {

class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(MappedFile mapping, std::span<const std::byte> bytes, std::string file)
      : mapping_(std::move(mapping)), file_(GgufFile::parse(bytes, std::move(file), GgufFile::Tensors::kRead)) {
    config_ = read_gguf_config(file_);
    tokenizer_ = read_gguf_tokenizer(file_);
    pad_tokens(tokenizer_, config_.vocab, file_.file());
    for (const GgufTensor& t : file_.tensors())
      if (t.name != "rope_freqs.weight")
        tensors_.push_back({std::string(t.name), view_of_dims(t.data.data(), t.dtype, t.dims, t.rank)});
    check_weights(config_, *this, file_.file());
    metadata_ = file_.describe();
    format_ = fmt::format("GGUF v{}", file_.version());
  }

  const ModelConfig& config() const override { return config_; }
  const TokenizerData& tokenizer() const override { return tokenizer_; }
  const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }
  const std::vector<MetadataEntry>& metadata() const override { return metadata_; }
  std::string_view format() const override { return format_; }

 private:
  MappedFile mapping_;
  GgufFile file_;
  ModelConfig config_;
  TokenizerData tokenizer_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<MetadataEntry> metadata_;
  std::string format_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& path) {
  MappedFile mapping(path);
  const auto bytes = mapping.bytes();
  return std::make_unique<GgufCheckpoint>(std::move(mapping), bytes, path.string());
}

std::unique_ptr<Checkpoint> open_gguf(std::span<const std::byte> bytes, std::string file) {
  return std::make_unique<GgufCheckpoint>(MappedFile(), bytes, std::move(file));
}

}  // namespace mneme

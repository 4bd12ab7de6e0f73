#include "src/formats/gguf/gguf_checkpoint.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/formats/gguf/gguf_file.h"
#include "src/formats/gguf/gguf_model.h"
#include "src/formats/gguf/gguf_parts.h"
#include "src/formats/tensor_table.h"
#include "src/formats/tokenizer_check.h"
#include "src/formats/weight_names.h"

namespace mneme {
namespace {

class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(std::vector<MappedFile> mappings, GgufFile file)
      : mappings_(std::move(mappings)), file_(std::move(file)) {
    config_ = read_gguf_config(file_);
    tokenizer_ = read_gguf_tokenizer(file_);
    pad_tokens(tokenizer_, config_.vocab, file_.file());
    std::int64_t n_drafting = 0;
    for (const GgufTensor& t : file_.tensors())
      if (is_of_draft(config_, t.name))
        ++n_drafting;
      else if (t.name != "rope_freqs.weight" && !t.name.starts_with("rope_factors_"))
        add_split(config_, {std::string(t.name), view_of_dims(t.data.data(), t.dtype, t.dims, t.rank)}, tensors_);
    check_weights(config_, *this, file_.file());
    metadata_ = file_.describe();
    if (n_drafting > 0)
      metadata_.push_back(
          {"left out", "string", fmt::format("{} tensors of blocks that draft tokens (MTP)", n_drafting)});
    format_ = fmt::format("GGUF v{}", file_.version());
    if (mappings_.size() > 1) format_ += fmt::format(", {} parts", mappings_.size());
  }

  const ModelConfig& config() const override { return config_; }
  const TokenizerData& tokenizer() const override { return tokenizer_; }
  const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }
  const std::vector<MetadataEntry>& metadata() const override { return metadata_; }
  std::vector<CarriedMetadata> carried_metadata() const override { return file_.carried(); }
  std::string_view format() const override { return format_; }

 private:
  std::vector<MappedFile> mappings_;
  GgufFile file_;
  ModelConfig config_;
  TokenizerData tokenizer_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<MetadataEntry> metadata_;
  std::string format_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& path) {
  std::vector<MappedFile> mappings;
  mappings.emplace_back(path);
  GgufFile file = GgufFile::parse(mappings.front().bytes(), path.string(), GgufFile::Tensors::kRead);
  for (MappedFile& other : add_other_parts(file, path)) mappings.push_back(std::move(other));
  return std::make_unique<GgufCheckpoint>(std::move(mappings), std::move(file));
}

std::unique_ptr<Checkpoint> open_gguf(std::span<const std::byte> bytes, std::string file) {
  GgufFile parsed = GgufFile::parse(bytes, std::move(file), GgufFile::Tensors::kRead);
  if (const auto split = parsed.split())
    fail(ErrorKind::kFormat, "{}: part {} of {}, without the others", parsed.file(), split->no + 1, split->count);
  return std::make_unique<GgufCheckpoint>(std::vector<MappedFile>(), std::move(parsed));
}

}  // namespace mneme

#include "src/formats/gguf/gguf_checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/base/thread_pool.h"
#include "src/formats/gguf/gguf_file.h"
#include "src/formats/gguf/gguf_model.h"
#include "src/formats/gguf/gguf_parts.h"
#include "src/formats/nvfp4.h"
#include "src/formats/tensor_table.h"
#include "src/formats/tokenizer_check.h"
#include "src/formats/weight_names.h"
#include "src/tensor/buffer.h"

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
    std::optional<ThreadPool> pool;  // for files with NVFP4
    for (const GgufTensor& t : file_.tensors()) {
      if (is_of_draft(config_, t.name)) {
        ++n_drafting;
        continue;
      }
      if (t.name == "rope_freqs.weight" || t.name.starts_with("rope_factors_") || is_scale_of_nvfp4(t.name)) continue;
      const std::byte* data = t.dtype == DType::kNVFP4 ? repack_nvfp4(t, pool) : t.data.data();
      add_split(config_, {std::string(t.name), view_of_dims(data, t.dtype, t.dims, t.rank)}, tensors_);
    }
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
  static constexpr std::string_view kWeight = ".weight", kScale = ".scale", kInputScale = ".input_scale";
  static constexpr std::int64_t kBlocksPerTask = 4096;

  // The factor of a matrix in NVFP4, or the scale of its activations, which stay in 16 bits.
  bool is_scale_of_nvfp4(std::string_view name) const {
    for (const std::string_view end : {kInputScale, kScale}) {
      if (!name.ends_with(end)) continue;
      const GgufTensor* matrix =
          file_.find_tensor(fmt::format("{}{}", name.substr(0, name.size() - end.size()), kWeight));
      return matrix != nullptr && matrix->dtype == DType::kNVFP4;
    }
    return false;
  }

  // With the factor in every block. One for the matrix or for each expert; without the tensor, 1.
  const std::byte* repack_nvfp4(const GgufTensor& t, std::optional<ThreadPool>& pool) {
    if (!pool) pool.emplace(available_cpus());
    if (!t.name.ends_with(kWeight))
      fail(ErrorKind::kUnsupported, "{}: tensor '{}' is NVFP4; expected a matrix named ...{}", file_.file(), t.name,
           kWeight);
    const std::string name = fmt::format("{}{}", t.name.substr(0, t.name.size() - kWeight.size()), kScale);
    const GgufTensor* factors = file_.find_tensor(name);
    const std::int64_t n_matrices = t.rank == 3 ? t.dims[0] : 1;
    const auto n = static_cast<std::int64_t>(t.data.size()) / kGgufNvfp4Bytes / n_matrices;  // blocks of each
    if (factors != nullptr && (factors->dtype != DType::kF32 || factors->rank != 1 || factors->dims[0] != n_matrices))
      fail(ErrorKind::kFormat, "{}: tensor '{}': expected F32 [{}]", file_.file(), name, n_matrices);
    Buffer& blocks = repacked_.emplace_back(n_matrices * n * sizeof(BlockNVFP4));
    for (std::int64_t i = 0; i < n_matrices; ++i) {
      float factor = 1.0f;
      if (factors != nullptr) std::memcpy(&factor, factors->data.data() + i * sizeof(float), sizeof(float));
      if (!std::isfinite(factor))
        fail(ErrorKind::kFormat, "{}: tensor '{}': expected numbers, found {}", file_.file(), name, factor);
      const std::byte* from = t.data.data() + i * n * kGgufNvfp4Bytes;
      BlockNVFP4* const to = blocks.as<BlockNVFP4>() + i * n;
      pool->parallel_for(n, kBlocksPerTask, [&](std::int64_t b, std::int64_t end, int) {
        pack_nvfp4_blocks(end - b, from + b * kGgufNvfp4Bytes, factor, to + b);
      });
    }
    return blocks.data();
  }

  std::vector<MappedFile> mappings_;
  GgufFile file_;
  ModelConfig config_;
  TokenizerData tokenizer_;
  std::deque<Buffer> repacked_;  // matrices that tensors_ views
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

#include "src/model/ranks/rank_checkpoint.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "src/base/error.h"
#include "src/formats/weight_names.h"
#include "src/model/ranks/rank_forward.h"
#include "src/parallel/collective.h"
#include "src/tensor/buffer.h"
#include "src/tensor/dtype.h"

namespace mneme {
namespace {

enum class Cut { kNone, kHeads, kKvHeads, kFfn };
struct CutTensor {
  std::string_view name;  // behind "blk.N."
  Cut cut;
  bool columns = false;
};
constexpr CutTensor kCut[] = {
    {"attn_q.weight", Cut::kHeads},       {"attn_k.weight", Cut::kKvHeads},
    {"attn_v.weight", Cut::kKvHeads},     {"attn_q.bias", Cut::kHeads},
    {"attn_k.bias", Cut::kKvHeads},       {"attn_v.bias", Cut::kKvHeads},
    {"attn_sinks.weight", Cut::kHeads},   {"attn_output.weight", Cut::kHeads, true},
    {"ffn_gate.weight", Cut::kFfn},       {"ffn_up.weight", Cut::kFfn},
    {"ffn_down.weight", Cut::kFfn, true},
};

// Behind "blk.N."; "": not of a layer.
std::string_view name_in_layer(std::string_view name) {
  if (!name.starts_with("blk.")) return "";
  return name.substr(std::min(name.find('.', 4), name.size() - 1) + 1);
}

const CutTensor* cut_of(std::string_view name) {
  const std::string_view part = name_in_layer(name);
  for (const CutTensor& c : kCut)
    if (c.name == part) return &c;
  return nullptr;
}

// E of "blk.N.ffn_gate.E.weight"; none: not one expert's.
std::optional<std::int64_t> expert_number(std::string_view name) {
  const std::string_view part = name_in_layer(name);
  const std::string_view number = part.substr(std::min(part.find('.'), part.size() - 1) + 1);
  std::int64_t e = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), e);
  return error == std::errc() && end != number.data() + number.size() && *end == '.' ? std::optional(e) : std::nullopt;
}

// A part of another checkpoint: its own shape and tensors, all else the whole's.
class PartOfCheckpoint : public Checkpoint {
 public:
  const ModelConfig& config() const override { return config_; }
  const TokenizerData& tokenizer() const override { return whole_->tokenizer(); }
  const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }
  const std::vector<MetadataEntry>& metadata() const override { return whole_->metadata(); }
  std::string_view format() const override { return whole_->format(); }

 protected:
  PartOfCheckpoint(std::unique_ptr<Checkpoint> whole, ModelConfig config)
      : whole_(std::move(whole)), config_(std::move(config)) {}

  std::unique_ptr<Checkpoint> whole_;
  ModelConfig config_;
  std::vector<CheckpointTensor> tensors_;
};

class RankCheckpoint final : public PartOfCheckpoint {
 public:
  RankCheckpoint(std::unique_ptr<Checkpoint> whole, const ModelConfig& config, int rank, int size)
      : PartOfCheckpoint(std::move(whole), config), rank_(rank), size_(size) {
    const RankRange experts = rank_experts(config.experts.n, rank, size);
    for (const CheckpointTensor& t : whole_->tensors()) {
      const std::optional<std::int64_t> one = expert_number(t.name);
      if (t.view.rank() == 3)
        add_experts(t, experts);
      else if (!one || (*one >= experts.first && *one < experts.end))
        tensors_.push_back(cut(t));
    }
  }

 private:
  // Adds the experts of a stack.
  void add_experts(const CheckpointTensor& stack, const RankRange& mine) {
    const ConstTensorView& v = stack.view;
    const WeightSpec spec{
        .name = stack.name, .hf_name = {}, .n_out = v.dim(1), .n_in = v.dim(2), .n_experts = v.dim(0)};
    const auto find = [&stack](const std::string&) { return &stack; };
    for (std::int64_t e = mine.first; e < std::min(mine.end, v.dim(0)); ++e)
      tensors_.push_back(expert_of(find, spec, e));
  }

  CheckpointTensor cut(const CheckpointTensor& t) {
    const CutTensor* const how = cut_of(t.name);
    if (how == nullptr) return t;
    if (how->columns) return {.name = t.name, .view = columns_of(t)};
    const RankRange rows = rank_range(t.view.dim(0), rank_, size_);
    if (t.view.rank() > 1) return {.name = t.name, .view = t.view.rows(rows.first, rows.end), .columns = t.columns};
    const ConstTensorView& v = t.view;
    return {.name = t.name,
            .view = ConstTensorView(v.data() + row_bytes(v.dtype(), rows.first), v.dtype(), {rows.size()})};
  }

  ConstTensorView columns_of(const CheckpointTensor& t) {
    const ConstTensorView& v = t.view;
    // Its stored blocks hold columns of every rank's heads (GPTQ with act-order).
    if (!t.columns.empty())
      fail(ErrorKind::kUnsupported, "--tensor-parallel-size {}: {} has reordered columns (GPTQ with act-order)", size_,
           t.name);
    const std::int64_t block = dtype_info(v.dtype()).block;
    if (v.dim(1) % (block * size_) != 0)
      fail(ErrorKind::kOption, "--tensor-parallel-size {}: {} columns of {} in blocks of {} cannot be shared out",
           size_, v.dim(1), t.name, block);
    const RankRange columns = rank_range(v.dim(1), rank_, size_);
    const std::size_t bytes = row_bytes(v.dtype(), columns.size()), skip = row_bytes(v.dtype(), columns.first);
    Buffer& copy = copies_.emplace_back();
    copy.reserve(bytes * v.dim(0));
    for (std::int64_t r = 0; r < v.dim(0); ++r) std::memcpy(copy.data() + bytes * r, v.row(r) + skip, bytes);
    return ConstTensorView(copy.data(), v.dtype(), {v.dim(0), columns.size()});
  }

  int rank_, size_;
  std::vector<Buffer> copies_;
};

class StageCheckpoint final : public PartOfCheckpoint {
 public:
  StageCheckpoint(std::unique_ptr<Checkpoint> whole, const ModelConfig& config, const RankRange& layers)
      : PartOfCheckpoint(std::move(whole), config) {
    for (const CheckpointTensor& t : whole_->tensors()) {
      CheckpointTensor& here = tensors_.emplace_back(t);
      if (!t.name.starts_with("blk.")) continue;
      const std::size_t dot = t.name.find('.', 4);
      const std::int64_t layer = std::stoll(t.name.substr(4, dot - 4));
      here.name = fmt::format("blk.{}{}", layer - layers.first, t.name.substr(dot));
      if (layer < layers.first || layer >= layers.end) tensors_.pop_back();
    }
  }
};

}  // namespace

namespace {

void expect_no_states(const ModelConfig& c, const char* option, int size) {
  if (c.delta.n_k_heads > 0)
    fail(ErrorKind::kUnsupported,
         "{} {}: layers with linear attention are not shared out; run the model in one process", option, size);
}

}  // namespace

ModelConfig rank_config(ModelConfig c, int size) {
  const auto share = [size](std::int64_t& n, std::string_view what) {
    if (n % size != 0)
      fail(ErrorKind::kOption, "--tensor-parallel-size {}: {} {} cannot be shared out: expected a divisor", size, n,
           what);
    n /= size;
  };
  expect_no_states(c, "--tensor-parallel-size", size);
  if (c.qk_norm_all)
    fail(ErrorKind::kUnsupported,
         "--tensor-parallel-size {}: q and k are normed over all heads together, which are on {} ranks: expected a "
         "model "
         "that norms each head, or --pipeline-parallel-size",
         size, size);
  share(c.n_kv_heads, "KV heads");
  share(c.n_heads, "heads");
  if (c.experts.n == 0) {
    share(c.ffn, "columns of the feed-forward layer");
  } else if (c.experts.n < size) {
    fail(ErrorKind::kOption, "--tensor-parallel-size {}: the model has {} experts", size, c.experts.n);
  }
  return c;
}

std::unique_ptr<Checkpoint> rank_checkpoint(std::unique_ptr<Checkpoint> whole, int rank, int size) {
  const ModelConfig config = rank_config(whole->config(), size);
  return std::make_unique<RankCheckpoint>(std::move(whole), config, rank, size);
}

RankRange stage_layers(std::int64_t n_layers, int stage, int n_stages) {
  return {.first = n_layers * stage / n_stages, .end = n_layers * (stage + 1) / n_stages};
}

ModelConfig stage_config(ModelConfig c, int stage, int n_stages) {
  expect_no_states(c, "--pipeline-parallel-size", n_stages);
  if (c.n_layers < n_stages)
    fail(ErrorKind::kOption, "--pipeline-parallel-size {}: the model has {} layers", n_stages, c.n_layers);
  const RankRange layers = stage_layers(c.n_layers, stage, n_stages);
  for (std::vector<bool>* flags : {&c.windowed, &c.unrotated})
    if (!flags->empty()) *flags = std::vector<bool>(flags->begin() + layers.first, flags->begin() + layers.end);
  c.n_layers = layers.size();
  return c;
}

std::unique_ptr<Checkpoint> stage_checkpoint(std::unique_ptr<Checkpoint> whole, int stage, int n_stages) {
  const ModelConfig config = stage_config(whole->config(), stage, n_stages);
  const RankRange layers = stage_layers(whole->config().n_layers, stage, n_stages);
  return std::make_unique<StageCheckpoint>(std::move(whole), config, layers);
}

}  // namespace mneme

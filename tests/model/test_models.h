// Small random models, and a checkpoint in memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/rng.h"
#include "src/formats/checkpoint.h"
#include "src/formats/family.h"
#include "src/formats/weight_names.h"
#include "src/model/model.h"
#include "src/ops/gemm/gemm.h"
#include "src/tensor/buffer.h"

namespace mneme {

inline ModelConfig small_config(Architecture architecture = Architecture::kLlama) {
  ModelConfig c;
  c.architecture = architecture;
  c.n_layers = 2;
  c.hidden = 64;
  c.ffn = 96;
  c.n_heads = 8;
  c.n_kv_heads = 2;
  c.head_dim = 16;
  c.vocab = 50;
  c.max_context = 512;
  set_family_fields(c);
  if (family_of(architecture).experts != ExpertNames::kNone) c.experts = {.n = 6, .n_used = 2, .ffn = 32};
  if (architecture == Architecture::kGptOss) {
    c.experts = {.n = 6, .n_used = 2, .ffn = 32, .normalise = true, .biases = true, .limit = 1.0};
    c.sliding_window = 20;
    c.windowed = {true, false};
  }
  if (architecture == Architecture::kMistral3) {
    c.temperature = 0.5;
    c.temperature_context = 16;
  }
  c.rope.theta = 1000.0;
  const Family& family = family_of(architecture);
  if (architecture > Architecture::kGptOss) c.rope.pairs = family.gguf_pairs;
  if (family.multipliers)
    c.embedding_scale = 3.0, c.residual_scale = 0.5, c.attention_scale = 0.5, c.logit_divisor = 2.0;
  if (family.unrotated_period > 0) c.unrotated = {true, false};
  if (family.partial_rope) c.rope.rotary_dim = c.head_dim / 2;
  if (family.delta) {
    c.delta = {.n_k_heads = 2, .n_v_heads = 4, .d_k = 16, .d_v = 8, .taps = 4, .tiled = false, .layers = {true, false}};
    if (c.experts.n > 0) c.experts.shared = 24;
  }
  if (family.plain_windows) {
    c.sliding_window = 20;
    c.windowed = {true, false};
    c.rope.scaling = RopeScaling::kYarn;
    c.rope.factor = 4.0;
    c.rope.original_context = 64;
  }
  return c;
}

// Every architecture, for tests that take one.
inline std::vector<Architecture> all_architectures() {
  std::vector<Architecture> all;
  for (const Family& family : families()) all.push_back(family.architecture);
  return all;
}

// A checkpoint without a file: zeros in every weight of `config`, ready to be damaged.
class MemoryCheckpoint : public Checkpoint {
 public:
  MemoryCheckpoint(const ModelConfig& config, DType dtype) : config_(config) {
    for_each_weight(config, [&](const WeightSpec& w) {
      if (w.n_in == 0)
        add(w.name, DType::kF32, {w.n_out});
      else if (w.n_experts > 0)
        add(w.name, dtype, {w.n_experts, w.n_out, w.n_in});
      else
        add(w.name, dtype, {w.n_out, w.n_in});
    });
  }

  void add(const std::string& name, DType dtype, std::initializer_list<std::int64_t> shape) {
    const Tensor& t = memory_.emplace_back(dtype, shape);
    std::fill_n(t.view().data(), t.bytes(), std::byte{0});
    tensors_.push_back({name, t});
  }
  // Quantises the f32 matrices whose names end so.
  void quantise(std::string_view end, DType dtype) {
    for (CheckpointTensor& t : tensors_) {
      if (!t.name.ends_with(end)) continue;
      const Tensor& to = memory_.emplace_back(dtype, std::initializer_list<std::int64_t>{t.view.dim(0), t.view.dim(1)});
      quantise_rows(t.view, to);
      t.view = to;
    }
  }
  // Stacks of experts as one matrix an expert.
  void unstack_experts() {
    std::vector<CheckpointTensor> all;
    for (const CheckpointTensor& t : tensors_) {
      if (t.view.rank() != 3) {
        all.push_back(t);
        continue;
      }
      const WeightSpec stack{
          .name = t.name, .hf_name = {}, .n_out = t.view.dim(1), .n_in = t.view.dim(2), .n_experts = t.view.dim(0)};
      for (std::int64_t e = 0; e < stack.n_experts; ++e)
        all.push_back(expert_of([&t](const std::string&) { return &t; }, stack, e));
    }
    tensors_ = std::move(all);
  }
  // Random weights. Requires  all of them f32.
  void fill(std::uint64_t seed) {
    Rng rng(seed);
    for (std::size_t k = 0; k < memory_.size(); ++k) {
      const bool decays = tensors_[k].name.ends_with("ssm_a");  // a state that grows would drown everything
      for (std::size_t i = 0; i < memory_[k].bytes() / sizeof(float); ++i) {
        const auto x = static_cast<float>(0.2 * rng.normal());
        memory_[k].as<float>()[i] = decays ? -std::abs(x) : x;
      }
    }
  }
  // Puts all tensors at odd addresses, as a safetensors file may.
  void misalign() {
    for (CheckpointTensor& t : tensors_) {
      const std::size_t bytes = (t.view.rank() == 1 ? 1 : t.view.dim(0)) * t.view.stride_bytes();
      const Tensor& odd =
          memory_.emplace_back(DType::kU8, std::initializer_list<std::int64_t>{static_cast<std::int64_t>(bytes) + 1});
      std::byte* data = odd.view().data() + 1;
      std::copy_n(t.view.data(), bytes, data);
      t.view = t.view.rank() == 1 ? ConstTensorView(data, t.view.dtype(), {t.view.dim(0)})
                                  : ConstTensorView(data, t.view.dtype(), {t.view.dim(0), t.view.dim(1)});
    }
  }
  // The columns of a matrix in another order; the caller keeps `columns`.
  void reorder(std::string_view name, std::span<const std::int32_t> columns) {
    for (CheckpointTensor& t : tensors_)
      if (t.name == name) t.columns = columns;
  }
  // The last n ids without a token.
  void pad(std::int64_t n) {
    tokenizer_.tokens.resize(config_.vocab, "x");
    tokenizer_.types.resize(config_.vocab, TokenType::kNormal);
    std::fill_n(tokenizer_.types.rbegin(), n, TokenType::kAbsent);
  }
  void remove(std::string_view name) {
    std::erase_if(tensors_, [&](const CheckpointTensor& t) { return t.name == name; });
  }

  const ModelConfig& config() const override { return config_; }
  const TokenizerData& tokenizer() const override { return tokenizer_; }
  const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }
  const std::vector<MetadataEntry>& metadata() const override { return metadata_; }
  std::string_view format() const override { return "memory"; }

 private:
  ModelConfig config_;
  TokenizerData tokenizer_;
  std::vector<Tensor> memory_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<MetadataEntry> metadata_;
};

inline std::vector<std::int32_t> random_tokens(std::size_t n, std::int64_t vocab, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::int32_t> tokens(n);
  for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(rng.below(vocab));
  return tokens;
}

}  // namespace mneme

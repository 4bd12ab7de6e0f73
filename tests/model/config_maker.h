// Configurations from bytes: keys of a config.json or of a GGUF file, present or not, with values at and beyond their
// ends. The sizes are tiny, so that a model of random weights runs in a millisecond.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/formats/family.h"
#include "src/formats/gguf/gguf_file.h"
#include "src/formats/gguf/gguf_model.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/model/model.h"
#include "tests/formats/gguf/gguf_builder.h"
#include "tests/model/sequence_runner.h"

namespace mneme::test {

// Choices from bytes; 0 where they have ended.
class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  std::size_t below(std::size_t n) { return (at_ < bytes_.size() ? bytes_[at_++] : 0u) % n; }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }
  bool rarely() { return below(8) == 7; }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

// Sizes of both kinds of files.
struct TinySizes {
  std::int64_t layers, hidden, heads, kv_heads, head_dim, ffn, context, experts, experts_used;
  explicit TinySizes(Bytes& b)
      : layers(b.one_of<std::int64_t>({2, 1, 3})),
        hidden(b.one_of<std::int64_t>({32, 64, 8})),
        heads(b.one_of<std::int64_t>({4, 2, 1, 6})),
        kv_heads(b.one_of<std::int64_t>({1, 2, 4})),
        head_dim(b.one_of<std::int64_t>({16, 8, 24, 2, 6})),
        ffn(b.one_of<std::int64_t>({32, 16})),
        context(b.one_of<std::int64_t>({512, 64, 40, 1 << 20})),
        experts(b.one_of<std::int64_t>({3, 1, 2, 0})),
        experts_used(b.one_of<std::int64_t>({1, 2, 3, 0})) {}
};

// Sizes of linear attention; 0: the file does not say.
class DeltaSizes {
 public:
  std::int64_t k_heads, v_heads, d_k, d_v, taps, interval;
  explicit DeltaSizes(Bytes& b)
      : k_heads(size(b, {2, 1, 2, 3})),
        v_heads(size(b, {6, 2, 6, 4})),
        d_k(size(b, {8, 1, 5, 16})),
        d_v(size(b, {8, 1, 7, 16})),
        taps(size(b, {4, 2, 3, 16})),
        interval(hostile(b) ? b.one_of<std::int64_t>({0, -1, 1LL << 40}) : b.one_of<std::int64_t>({2, 1, 3, 4})) {}

 private:
  static bool hostile(Bytes& b) { return b.below(24) == 23; }  // there are six of them
  static std::int64_t size(Bytes& b, std::initializer_list<std::int64_t> good) {
    return hostile(b) ? b.one_of<std::int64_t>({0, -1, 17, 300, 1 << 20}) : b.one_of(good);
  }
};

inline nlohmann::json rope_section(Bytes& b) {
  nlohmann::json s = nlohmann::json::object();
  const auto number = [&](const char* key, std::initializer_list<double> values) {
    if (b.below(2) == 1) s[key] = b.one_of(values);
  };
  s[b.one_of<const char*>({"rope_type", "type"})] =
      b.one_of<const char*>({"yarn", "default", "linear", "dynamic", "llama3", "longrope"});
  if (!b.rarely()) s["factor"] = b.one_of<double>({4, 1, 0.5, 1e6, 0, -1, 1e-3});
  if (!b.rarely()) s["original_max_position_embeddings"] = b.one_of<std::int64_t>({16, 1, 128, 0, -1, 1LL << 40});
  number("rope_theta", {1e4, 1, 1.0001, 1e12, 0});
  number("attention_factor", {1, 0.1, 1000, 0});
  number("beta_fast", {32, 1, 1e6});
  number("beta_slow", {1, 32, 1e-6});
  number("mscale", {1, 0, -10});
  number("mscale_all_dim", {1, 0, -10, 0.5});
  number("llama_4_scaling_beta", {0.1, 0, 1000, -1});
  number("low_freq_factor", {1, 4, 1e-6});
  number("high_freq_factor", {4, 1, 1e6});
  number("partial_rotary_factor", {0.5, 1, 0.75, 0, -1, 1e-9});
  number("alpha", {20, 1e-6, -1, 1e9});
  for (const char* key : {"short_factor", "long_factor"})
    if (b.below(2) == 1)
      s[key] = std::vector<double>(b.one_of<std::size_t>({8, 4, 12, 1, 0}), b.one_of<double>({1, 8, 0, -1}));
  if (b.below(2) == 1) s["truncate"] = b.below(2) == 1;
  return s;
}

inline void add_gemma_keys(Bytes& b, nlohmann::json& c) {
  if (b.rarely()) c["hidden_activation"] = b.one_of<const char*>({"gelu_pytorch_tanh", "silu"});
  if (b.below(2) == 1) c["query_pre_attn_scalar"] = b.one_of<std::int64_t>({16, 1, 0, -1, 1LL << 40});
  if (b.below(2) == 1) c["final_logit_softcapping"] = b.one_of<double>({30, 1e-3, 0, -1, 1e9});
  if (b.below(2) == 1) c["rope_local_base_freq"] = b.one_of<double>({1e4, 1, 0, -1, 1e12});
  if (b.below(2) == 1) c["sliding_window_pattern"] = b.one_of<std::int64_t>({2, 1, 0, -1, 1LL << 40});
  if (b.rarely()) c["attn_logit_softcapping"] = 50.0;
}

// Errors  those of read_hf_config().
inline ModelConfig hf_config_of(Bytes& b) {
  const Family& family = families()[b.below(families().size())];
  const std::string_view type = family.hf_type;
  const TinySizes t(b);
  nlohmann::json c = {{"model_type", type},
                      {"num_hidden_layers", t.layers},
                      {"hidden_size", t.hidden},
                      {"intermediate_size", t.ffn},
                      {"num_attention_heads", t.heads},
                      {"num_key_value_heads", t.kv_heads},
                      {"head_dim", t.head_dim},
                      {"vocab_size", 24},
                      {"max_position_embeddings", t.context},
                      {"moe_intermediate_size", t.ffn},
                      {"num_experts_per_tok", t.experts_used},
                      {"norm_topk_prob", b.below(2) == 1},
                      {"tie_word_embeddings", b.below(2) == 1}};
  c[b.rarely() ? "num_experts" : "num_local_experts"] = t.experts;
  if (b.below(2) == 1) c["rms_norm_eps"] = b.one_of<double>({1e-5, 1e-12, 1, 0});
  if (b.below(2) == 1) c["sliding_window"] = b.one_of<std::int64_t>({16, 1, 0, 1LL << 31, -1});
  if (b.below(2) == 1) c["use_sliding_window"] = true;
  if (b.below(2) == 1) c["max_window_layers"] = b.one_of<std::int64_t>({0, 1, 28});
  if (b.below(2) == 1) c["swiglu_limit"] = b.one_of<double>({7, 0.5, 0, -1});
  for (const char* key : {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"})
    if (family.multipliers && b.below(2) == 1) c[key] = b.one_of<double>({0.5, 1e-3, 1e3, 0, -1, 1e9});
  if (family.unrotated_period > 0 && b.below(2) == 1)
    c["no_rope_layers"] = std::vector<int>(b.one_of<std::size_t>({2, 1, 3, 0}), b.one_of<int>({0, 1}));
  if (family.gate == Gate::kGelu) add_gemma_keys(b, c);
  if (b.rarely()) c["attention_bias"] = true;
  if (family.delta) {
    const DeltaSizes d(b);
    c["linear_num_key_heads"] = d.k_heads;
    c["linear_num_value_heads"] = d.v_heads;
    c["linear_key_head_dim"] = d.d_k;
    c["linear_value_head_dim"] = d.d_v;
    c["linear_conv_kernel_dim"] = d.taps;
    c["full_attention_interval"] = d.interval;
    c["shared_expert_intermediate_size"] = b.rarely() ? -1 : b.one_of<std::int64_t>({16, 0, 24});
    if (b.rarely())
      for (std::int64_t i = 0; i < t.layers; ++i)
        c["layer_types"].push_back(b.below(2) == 1 ? "linear_attention" : "full_attention");
  }
  if (b.below(2) == 1) c["rope_parameters"] = rope_section(b);
  if (b.below(2) == 1) c["rope_scaling"] = rope_section(b);
  if (b.rarely()) c["original_max_position_embeddings"] = b.one_of<std::int64_t>({8, 0, 1});
  if (!family.delta && b.rarely()) {
    for (std::int64_t i = 0; i < t.layers; ++i)
      c["layer_types"].push_back(b.below(2) == 1 ? "sliding_attention" : "full_attention");
  }
  return read_hf_config(JsonRef(c, "config.json"));
}

inline void set_gguf_rope(Bytes& b, const std::string& a, GgufBuilder& file) {
  const auto number = [&](const char* key, std::initializer_list<float> values) {
    if (b.below(2) == 1) file.set(a + key, b.one_of(values));
  };
  number("rope.freq_base", {1e4f, 1.0f, 1.0001f, 1e12f, 0.0f});
  if (b.below(4) != 3) file.set(a + "rope.scaling.type", b.one_of<const char*>({"yarn", "none", "linear", "dynamic"}));
  number("rope.scaling.factor", {4.0f, 1.0f, 0.5f, 1e6f, -1.0f, 1e-3f});
  number("rope.scale_linear", {4.0f, 0.0f});
  if (b.below(2) == 1)
    file.set(a + "rope.scaling.original_context_length", b.one_of<std::uint32_t>({16, 1, 0, 0xffffffffu}));
  number("rope.scaling.attn_factor", {1.0f, 0.5f, 1000.0f, 0.0f});
  number("rope.scaling.yarn_attn_factor", {1.0f, 1.5f, -1.0f});
  number("rope.scaling.yarn_beta_fast", {32.0f, 1.0f});
  number("rope.scaling.yarn_beta_slow", {1.0f, 32.0f});
  number("rope.scaling.yarn_log_multiplier", {1.0f, 0.0f, -10.0f, 100.0f});
  number("attention.temperature_scale", {0.1f, 0.0f, 1000.0f, -1.0f});
}

// Errors  those of read_gguf_config().
inline ModelConfig gguf_config_of(Bytes& b) {
  const std::string type(families()[b.below(families().size())].gguf);
  const std::string a = type + ".";
  const TinySizes t(b);
  GgufBuilder file;
  const auto size = [&](const char* key, std::int64_t v) { file.set(a + key, static_cast<std::uint32_t>(v)); };
  file.set("general.architecture", type.c_str());
  size("block_count", t.layers);
  size("context_length", t.context);
  size("embedding_length", t.hidden);
  size("feed_forward_length", t.ffn);
  size("attention.head_count", t.heads);
  if (!b.rarely()) size("attention.head_count_kv", t.kv_heads);
  if (!b.rarely()) size("attention.key_length", t.head_dim);
  file.set(a + "attention.layer_norm_rms_epsilon", b.one_of<float>({1e-5f, 1.0f, 0.0f}));
  if (b.below(2) == 1 || type == "gpt-oss") size("attention.sliding_window", b.one_of<std::int64_t>({16, 1, 0}));
  if (family_of_gguf(type)->delta) {
    const DeltaSizes d(b);
    size("ssm.group_count", d.k_heads);
    size("ssm.time_step_rank", d.v_heads);
    size("ssm.state_size", d.d_k);
    size("ssm.inner_size", d.v_heads * d.d_v);
    size("ssm.conv_kernel", d.taps);
    size("full_attention_interval", d.interval);
    if (b.rarely()) size("nextn_predict_layers", b.one_of<std::int64_t>({1, 0, 9, -1}));
    if (b.rarely()) size("expert_shared_feed_forward_length", b.one_of<std::int64_t>({16, 0, -1}));
    if (b.rarely())
      file.set_array<std::uint32_t>(a + "attention.recurrent_layers", 4,
                                    std::vector<std::uint32_t>(b.one_of<std::size_t>({2, 1, 3, 0}), 1));
    if (b.below(2) == 1) file.add("blk.0.attn_norm.weight", {static_cast<std::uint64_t>(t.hidden)}, 0);
  }
  if (family_of_gguf(type)->experts != ExpertNames::kNone) {
    size("expert_count", t.experts);
    size("expert_used_count", t.experts_used);
    size("expert_feed_forward_length", t.ffn);
    if (b.below(2) == 1) file.set(a + "expert_weights_norm", b.below(2) == 1);
    if (b.below(2) == 1) file.set("mneme.expert_limit", b.one_of<float>({7.0f, 0.5f, 0.0f, -1.0f}));
  }
  set_gguf_rope(b, a, file);
  if (type == "gemma3") {
    if (b.below(2) == 1) file.set(a + "rope.freq_base_swa", b.one_of<float>({1e4f, 1.0f, 0.0f}));
    if (b.below(2) == 1) size("attention.sliding_window_pattern", b.one_of<std::int64_t>({2, 1, 0, 1 << 30}));
    if (b.below(2) == 1) file.set(a + "final_logit_softcapping", b.one_of<float>({30.0f, 1e-3f, 0.0f, -1.0f, 1e9f}));
  }
  for (const char* key : {"embedding_scale", "residual_scale", "attention.scale", "logit_scale"})
    if (b.rarely()) file.set(a + key, b.one_of<float>({0.5f, 1e-3f, 1e3f, 0.0f, -1.0f, 1e9f}));
  if (b.rarely()) size("rope.dimension_count", b.one_of<std::int64_t>({8, 4, 2, 3, 0, 64}));
  file.add("token_embd.weight", {static_cast<std::uint64_t>(t.hidden), 24}, 0);
  if (b.below(2) == 1) file.add("output.weight", {static_cast<std::uint64_t>(t.hidden), 24}, 0);
  if (b.rarely()) file.add("blk.0.attn_q.bias", {8}, 0);
  const std::string bytes = file.build();
  return read_gguf_config(GgufFile::parse(std::as_bytes(std::span(bytes)), "made.gguf", GgufFile::Tensors::kRead));
}

// The configuration that the bytes say; nothing where it is none.
inline std::optional<ModelConfig> config_of_bytes(std::span<const std::uint8_t> bytes) {
  Bytes b(bytes);
  try {
    return b.below(2) == 1 ? hf_config_of(b) : gguf_config_of(b);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Logits of 40 tokens by a model of random weights and that configuration, the last one from a step of its own; nothing
// where its kernels do not take the configuration.
inline std::optional<std::vector<float>> step_of(const ModelConfig& config, const CpuContext& context) {
  std::unique_ptr<Model> model;
  try {
    model = Model::random(config, DType::kF32, {}, 7, context);
  } catch (const Error&) {
    return std::nullopt;
  }
  SequenceRunner runner(*model, DType::kBF16, context);
  SequenceCache cache(runner.pool);
  std::vector<std::int32_t> tokens(40);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 7 % config.vocab);
  std::vector<float> logits = runner.feed(cache, std::span(tokens).first(39), 39);
  const std::vector<float> last = runner.step(cache, std::span(tokens).last(1));
  logits.insert(logits.end(), last.begin(), last.end());
  return logits;
}

}  // namespace mneme::test

// Builds valid and invalid Hugging Face folders.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "src/formats/checkpoint.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/tensor/half.h"
#include "tests/formats/files.h"

namespace mneme::test {

using Json = nlohmann::json;

struct HfTensor {
  std::string name, dtype;  // "BF16", "F16", "F32"
  std::vector<std::int64_t> shape;
  std::string data;
};

// Header and data, in the given order.
inline std::string safetensors(const std::vector<HfTensor>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const HfTensor& t : tensors) {
    header[t.name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.data.size()}}};
    data += t.data;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
}

class HfBuilder {
 public:
  Json config, tokenizer, tokenizer_config, generation_config;
  std::vector<HfTensor> tensors;
  std::size_t shards = 1;
  std::map<std::string, std::string> extra;  // files by name

  HfTensor& tensor(const std::string& name) {
    for (HfTensor& t : tensors)
      if (t.name == name) return t;
    std::abort();
  }
  void erase_tensor(const std::string& name) {
    std::erase_if(tensors, [&](const HfTensor& t) { return t.name == name; });
  }
  void add(const std::string& name, std::vector<std::int64_t> shape, const std::string& dtype = "BF16") {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    HfTensor t{name, dtype, std::move(shape), {}};
    for (std::int64_t i = 0; i < n; ++i) {
      const auto v = static_cast<float>(rng_.normal());
      if (dtype == "F32") t.data.append(reinterpret_cast<const char*>(&v), 4);
      const std::uint16_t half = dtype == "F16" ? f16(v).bits : bf16(v).bits;
      if (dtype != "F32") t.data.append(reinterpret_cast<const char*>(&half), 2);
    }
    tensors.push_back(std::move(t));
  }

  void write(const TempFolder& folder) const {
    if (!config.is_null()) folder.write("config.json", config.dump());
    if (!tokenizer.is_null()) folder.write("tokenizer.json", tokenizer.dump());
    if (!tokenizer_config.is_null()) folder.write("tokenizer_config.json", tokenizer_config.dump());
    if (!generation_config.is_null()) folder.write("generation_config.json", generation_config.dump());
    if (shards == 1) {
      folder.write("model.safetensors", safetensors(tensors));
    } else {
      Json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", Json::object()}};
      for (std::size_t s = 0; s < shards; ++s) {
        const std::string name = "model-" + std::to_string(s + 1) + "-of-" + std::to_string(shards) + ".safetensors";
        std::vector<HfTensor> part;
        for (std::size_t i = s; i < tensors.size(); i += shards) {
          part.push_back(tensors[i]);
          index["weight_map"][tensors[i].name] = name;
        }
        folder.write(name, safetensors(part));
      }
      folder.write("model.safetensors.index.json", index.dump());
    }
    for (const auto& [name, content] : extra) folder.write(name, content);
  }

  // The same sizes as GgufBuilder::tiny().
  static HfBuilder tiny(const std::string& type = "llama") {
    HfBuilder b;
    b.config = {{"model_type", type},
                {"_name_or_path", "tiny"},
                {"architectures", {"TinyForCausalLM"}},
                {"num_hidden_layers", 2},
                {"hidden_size", 64},
                {"intermediate_size", 96},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 2},
                {"head_dim", 32},
                {"vocab_size", 40},
                {"max_position_embeddings", 512},
                {"rms_norm_eps", 1e-5},
                {"rope_theta", 10000.0},
                {"tie_word_embeddings", true},
                {"eos_token_id", 1},
                {"bos_token_id", 0}};
    if (type == "qwen3_moe")
      b.config.update(
          {{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32}, {"norm_topk_prob", true}});
    if (type == "gpt_oss") {
      b.config.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"sliding_window", 16}});
      b.config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0},
                                  {"beta_fast", 32.0},   {"beta_slow", 1.0},
                                  {"truncate", false},   {"original_max_position_embeddings", 128}};
      b.config["quantization_config"] = {{"quant_method", "mxfp4"}};
    }
    if (type == "ministral3") {
      b.config.erase("rope_theta");
      b.config["rope_parameters"] = {{"rope_type", "yarn"},
                                     {"rope_theta", 1e6},
                                     {"factor", 4.0},
                                     {"original_max_position_embeddings", 128},
                                     {"mscale", 1.0},
                                     {"mscale_all_dim", 1.0},
                                     {"llama_4_scaling_beta", 0.1}};
    }
    b.tokenizer = byte_level_tokenizer();
    b.add("model.embed_tokens.weight", {40, 64});
    b.add("model.norm.weight", {64});
    for (int layer = 0; layer < 2; ++layer) b.add_layer("model.layers." + std::to_string(layer) + ".", type);
    return b;
  }

  static Json byte_level_tokenizer() {
    Json vocab = Json::object();
    for (int i = 0; i < 26; ++i) vocab[std::string(1, static_cast<char>('a' + i))] = i + 2;
    vocab["ab"] = 28;
    vocab["abc"] = 29;
    return {
        {"version", "1.0"},
        {"added_tokens",
         {{{"id", 0}, {"content", "<s>"}, {"special", true}},
          {{"id", 1}, {"content", "</s>"}, {"special", true}},
          {{"id", 30}, {"content", "<tool>"}, {"special", false}}}},
        {"normalizer", nullptr},
        {"pre_tokenizer",
         {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", "\\p{L}+|\\s+"}}}, {"behavior", "Isolated"}, {"invert", false}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}}}}},
        {"post_processor", nullptr},
        {"decoder", {{"type", "ByteLevel"}}},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"byte_fallback", false},
          {"vocab", vocab},
          {"merges", {"a b", "ab c"}}}}};
  }

  // As in Llama 2.
  static Json sentencepiece_tokenizer() {
    Json t = byte_level_tokenizer();
    Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"<0x00>", 3}, {"<0x0A>", 4}, {"▁", 5},
                  {"a", 6},     {"b", 7},   {"▁a", 8},   {"ab", 9},     {"▁ab", 10},   {"zz", 11}};
    t["added_tokens"] = {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
                         {{"id", 1}, {"content", "<s>"}, {"special", true}},
                         {{"id", 2}, {"content", "</s>"}, {"special", true}}};
    t["normalizer"] = {{"type", "Sequence"},
                       {"normalizers",
                        {{{"type", "Prepend"}, {"prepend", "▁"}},
                         {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}};
    t["pre_tokenizer"] = nullptr;
    t["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", Json::array()},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}};
    t["model"] = {{"type", "BPE"},
                  {"unk_token", "<unk>"},
                  {"byte_fallback", true},
                  {"vocab", vocab},
                  {"merges", {"▁ a", "a b", "▁a b", "▁ ab"}}};
    return t;
  }

 private:
  void add_layer(const std::string& p, const std::string& type) {
    add(p + "input_layernorm.weight", {64});
    add(p + "post_attention_layernorm.weight", {64});
    add(p + "self_attn.q_proj.weight", {128, 64});
    add(p + "self_attn.k_proj.weight", {64, 64}, "F16");
    add(p + "self_attn.v_proj.weight", {64, 64}, "F32");
    add(p + "self_attn.o_proj.weight", {64, 128});
    if (type == "gpt_oss") {
      add_gpt_oss(p);
    } else if (type == "qwen3_moe") {
      add(p + "mlp.gate.weight", {4, 64});
      for (int e = 0; e < 4; ++e) add_ffn(p + "mlp.experts." + std::to_string(e) + ".", 32);
    } else {
      add_ffn(p + "mlp.", 96);
    }
    if (type == "qwen2" || type == "gpt_oss") {
      add(p + "self_attn.q_proj.bias", {128});
      add(p + "self_attn.k_proj.bias", {64});
      add(p + "self_attn.v_proj.bias", {64});
    }
    if (type == "qwen3" || type == "qwen3_moe") {
      add(p + "self_attn.q_norm.weight", {32});
      add(p + "self_attn.k_norm.weight", {32});
    }
  }
  void add_gpt_oss(const std::string& p) {
    add(p + "self_attn.o_proj.bias", {64});
    add(p + "self_attn.sinks", {4});
    add(p + "mlp.router.weight", {4, 64});
    add(p + "mlp.router.bias", {4});
    const std::string e = p + "mlp.experts.";
    add_codes(e + "gate_up_proj_blocks", {4, 192, 2, 16});
    add_codes(e + "gate_up_proj_scales", {4, 192, 2});
    add(e + "gate_up_proj_bias", {4, 192});
    add_codes(e + "down_proj_blocks", {4, 64, 3, 16});
    add_codes(e + "down_proj_scales", {4, 64, 3});
    add(e + "down_proj_bias", {4, 64});
  }
  // Bytes of MXFP4: codes, and exponents around 1.
  void add_codes(const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    HfTensor t{name, "U8", std::move(shape), {}};
    const bool scales = name.ends_with("_scales");
    for (std::int64_t i = 0; i < n; ++i) t.data += static_cast<char>(scales ? 120 + rng_.below(8) : rng_.below(256));
    tensors.push_back(std::move(t));
  }
  void add_ffn(const std::string& p, std::int64_t ffn) {
    add(p + "gate_proj.weight", {ffn, 64});
    add(p + "up_proj.weight", {ffn, 64});
    add(p + "down_proj.weight", {64, ffn});
  }
  Rng rng_{11};
};

inline std::unique_ptr<Checkpoint> open(const HfBuilder& b) {
  TempFolder folder;  // mappings outlive the removed files
  b.write(folder);
  return Checkpoint::open(folder.path());
}

inline ModelConfig config_of(const Json& json) {
  return read_hf_config(JsonRef(json, "config.json"));
}

}  // namespace mneme::test

// Builds valid and invalid GGUF files byte by byte.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/rng.h"
#include "src/formats/gguf/gguf_types.h"
#include "tests/ops/gemm/scale_offsets.h"

namespace mneme::test {

class GgufBuilder {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dims;  // innermost first, as in the file
    std::uint32_t type = 0;
    std::string data;
    std::optional<std::uint64_t> offset;  // default: after the previous tensor
  };

  std::uint32_t version = 3;
  std::string magic = "GGUF";
  std::uint64_t alignment = 32;
  std::optional<std::uint64_t> tensor_count, entry_count;
  std::vector<std::pair<std::string, std::string>> entries;  // key, type and value
  std::vector<Tensor> tensors;

  template <typename T>
  static std::string raw(T v) {
    return std::string(reinterpret_cast<const char*>(&v), sizeof(T));
  }
  static std::string text(const std::string& s) { return raw<std::uint64_t>(s.size()) + s; }

  void set_raw(const std::string& key, std::string value) {
    for (auto& [k, v] : entries)
      if (k == key) {
        v = std::move(value);
        return;
      }
    entries.emplace_back(key, std::move(value));
  }
  void set(const std::string& key, std::uint32_t v) { set_raw(key, raw<std::uint32_t>(4) + raw(v)); }
  void set(const std::string& key, float v) { set_raw(key, raw<std::uint32_t>(6) + raw(v)); }
  void set(const std::string& key, bool v) { set_raw(key, raw<std::uint32_t>(7) + raw<std::uint8_t>(v)); }
  void set(const std::string& key, const char* v) { set_raw(key, raw<std::uint32_t>(8) + text(v)); }
  void set(const std::string& key, const std::vector<std::string>& v) {
    std::string out = raw<std::uint32_t>(9) + raw<std::uint32_t>(8) + raw<std::uint64_t>(v.size());
    for (const auto& s : v) out += text(s);
    set_raw(key, out);
  }
  template <typename T>
  void set_array(const std::string& key, std::uint32_t type, const std::vector<T>& v) {
    std::string out = raw<std::uint32_t>(9) + raw(type) + raw<std::uint64_t>(v.size());
    for (const T& x : v) out += raw(x);
    set_raw(key, out);
  }
  void erase(const std::string& key) {
    std::erase_if(entries, [&](const auto& e) { return e.first == key; });
  }
  Tensor& tensor(const std::string& name) {
    for (Tensor& t : tensors)
      if (t.name == name) return t;
    std::abort();
  }
  void erase_tensor(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; });
  }
  // Random finite weights in every type: scales of blocks are small.
  void add(const std::string& name, std::vector<std::uint64_t> dims, std::uint32_t type) {
    std::uint64_t n = 1;
    for (const std::uint64_t d : dims) n *= d;
    std::string data;
    if (const auto dtype = dtype_of_ggml(type); dtype && is_quantised(*dtype)) {
      const std::uint64_t block = dtype_info(*dtype).block;
      for (std::uint64_t i = 0; i < n / block; ++i) data += random_block(*dtype);
    } else {
      for (std::uint64_t i = 0; i < n; ++i) {
        if (type == 0) data += raw(static_cast<float>(rng_.normal()));
        if (type == 1) data += raw(f16(static_cast<float>(rng_.normal())).bits);
        if (type == 30) data += raw(bf16(static_cast<float>(rng_.normal())).bits);
      }
    }
    tensors.push_back({name, std::move(dims), type, std::move(data), std::nullopt});
  }

  std::string build() const {
    std::string out =
        magic + raw(version) + raw(tensor_count.value_or(tensors.size())) + raw(entry_count.value_or(entries.size()));
    for (const auto& [key, value] : entries) out += text(key) + value;
    std::uint64_t next = 0;
    std::vector<std::uint64_t> places;
    for (const Tensor& t : tensors) {
      places.push_back(t.offset.value_or(next));
      out += text(t.name) + raw<std::uint32_t>(static_cast<std::uint32_t>(t.dims.size()));
      for (const std::uint64_t d : t.dims) out += raw(d);
      out += raw(t.type) + raw(places.back());
      next = (next + t.data.size() + alignment - 1) / alignment * alignment;
    }
    if (tensors.empty()) return out;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    for (const Tensor& t : tensors) {
      out += t.data;
      out.resize((out.size() + alignment - 1) / alignment * alignment);
    }
    return out;
  }

  // Two layers with every supported tensor type; heads x head_dim differs from the hidden size; two tokens fewer than
  // rows.
  static GgufBuilder tiny() {
    GgufBuilder b;
    b.set("general.architecture", "llama");
    b.set("general.name", "tiny");
    b.set("llama.block_count", 2u);
    b.set("llama.context_length", 512u);
    b.set("llama.embedding_length", 64u);
    b.set("llama.feed_forward_length", 96u);
    b.set("llama.attention.head_count", 4u);
    b.set("llama.attention.head_count_kv", 2u);
    b.set("llama.attention.key_length", 32u);
    b.set("llama.attention.value_length", 32u);
    b.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    b.set("llama.rope.freq_base", 10000.0f);
    b.set("llama.rope.dimension_count", 32u);
    b.set_tokenizer(38);
    b.add("token_embd.weight", {64, 40}, 8);
    b.add("output_norm.weight", {64}, 0);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string p = "blk." + std::to_string(layer) + ".";
      b.add(p + "attn_norm.weight", {64}, 0);
      b.add(p + "ffn_norm.weight", {64}, 0);
      b.add(p + "attn_q.weight", {64, 128}, 8);
      b.add(p + "attn_k.weight", {64, 64}, 1);
      b.add(p + "attn_v.weight", {64, 64}, 30);
      b.add(p + "attn_output.weight", {128, 64}, 8);
      b.add(p + "ffn_gate.weight", {64, 96}, layer == 0 ? 2 : 3);
      b.add(p + "ffn_up.weight", {64, 96}, 0);
      b.add(p + "ffn_down.weight", {96, 64}, 8);
    }
    return b;
  }

  // qwen3moe of 4 experts, 2 used.
  static GgufBuilder mixture() {
    GgufBuilder b = tiny();
    b.rename_architecture("qwen3moe");
    b.set("qwen3moe.expert_count", 4u);
    b.set("qwen3moe.expert_used_count", 2u);
    b.set("qwen3moe.expert_feed_forward_length", 32u);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string p = "blk." + std::to_string(layer) + ".";
      for (const char* name : {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"}) b.erase_tensor(p + name);
      b.add(p + "attn_q_norm.weight", {32}, 0);
      b.add(p + "attn_k_norm.weight", {32}, 0);
      b.add(p + "ffn_gate_inp.weight", {64, 4}, 0);
      b.add(p + "ffn_gate_exps.weight", {64, 32, 4}, 8);
      b.add(p + "ffn_up_exps.weight", {64, 32, 4}, 39);
      b.add(p + "ffn_down_exps.weight", {32, 64, 4}, 2);
    }
    return b;
  }

  // gpt-oss of 4 experts, 2 used, the first layer with a window.
  static GgufBuilder gpt_oss() {
    GgufBuilder b = mixture();
    b.rename_architecture("qwen3moe", "gpt-oss");
    b.set("gpt-oss.attention.sliding_window", 16u);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string p = "blk." + std::to_string(layer) + ".";
      for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight", "ffn_norm.weight"}) b.erase_tensor(p + name);
      b.add(p + "post_attention_norm.weight", {64}, 0);
      b.add(p + "attn_sinks.weight", {4}, 0);
      b.add(p + "attn_q.bias", {128}, 0);
      b.add(p + "attn_k.bias", {64}, 0);
      b.add(p + "attn_v.bias", {64}, 0);
      b.add(p + "attn_output.bias", {64}, 0);
      b.add(p + "ffn_gate_inp.bias", {4}, 0);
      b.add(p + "ffn_gate_exps.bias", {32, 4}, 0);
      b.add(p + "ffn_up_exps.bias", {32, 4}, 0);
      b.add(p + "ffn_down_exps.bias", {64, 4}, 0);
    }
    return b;
  }

  void rename_architecture(const std::string& from, const std::string& to) {
    set("general.architecture", to.c_str());
    for (auto& [key, value] : entries)
      if (key.starts_with(from + ".")) key = to + key.substr(from.size());
  }
  void rename_architecture(const std::string& to) { rename_architecture("llama", to); }

  void set_tokenizer(std::size_t n) {
    std::vector<std::string> tokens = {"<|bos|>", "<|end|>"};
    std::vector<std::int32_t> types = {3, 3};
    while (tokens.size() < n) {
      tokens.push_back(tokens.size() < 28 ? std::string(1, static_cast<char>('a' + tokens.size() - 2))
                                          : "t" + std::to_string(tokens.size()));
      types.push_back(1);
    }
    tokens[n - 1] = "ab";
    tokens[n - 2] = "abc";
    set("tokenizer.ggml.model", "gpt2");
    set("tokenizer.ggml.pre", "qwen2");
    set("tokenizer.ggml.tokens", tokens);
    set_array("tokenizer.ggml.token_type", 5, types);
    set("tokenizer.ggml.merges", std::vector<std::string>{"a b", "ab c"});
    set("tokenizer.ggml.bos_token_id", 0u);
    set("tokenizer.ggml.eos_token_id", 1u);
    set("tokenizer.ggml.add_bos_token", true);
    set("tokenizer.chat_template", "{{ messages }}<|end|>");
    set("tokenizer.chat_templates", std::vector<std::string>{"tool_use"});
    set("tokenizer.chat_template.tool_use", "{{ tools }}<|end|>");
  }

  // Every matrix in one type, or token_embd in another, with rows of 256: what K-quants need.
  static GgufBuilder wide(std::uint32_t type, std::uint32_t embedding) {
    GgufBuilder b = tiny();
    b.set("llama.embedding_length", 256u);
    b.set("llama.feed_forward_length", 512u);
    b.set("llama.attention.head_count", 8u);
    b.tensors.clear();
    b.add("token_embd.weight", {256, 40}, embedding);
    b.add("output_norm.weight", {256}, 0);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string p = "blk." + std::to_string(layer) + ".";
      b.add(p + "attn_norm.weight", {256}, 0);
      b.add(p + "ffn_norm.weight", {256}, 0);
      b.add(p + "attn_q.weight", {256, 256}, type);
      b.add(p + "attn_k.weight", {256, 64}, type);
      b.add(p + "attn_v.weight", {256, 64}, type);
      b.add(p + "attn_output.weight", {256, 256}, type);
      b.add(p + "ffn_gate.weight", {256, 512}, type);
      b.add(p + "ffn_up.weight", {256, 512}, type);
      b.add(p + "ffn_down.weight", {512, 256}, type);
    }
    return b;
  }

 private:
  std::string random_block(DType dtype) {
    std::string out;
    while (out.size() < static_cast<std::size_t>(dtype_info(dtype).bytes)) out += static_cast<char>(rng_.below(256));
    if (dtype == DType::kMXFP4) {
      out[0] = 122;  // 2^-6
      return out;
    }
    const std::vector<std::size_t> scales = scale_offsets(dtype);
    // 2^-5, and -7 * 2^-5; 2^-12 where six-bit scales multiply them.
    const bool super = dtype_info(dtype).block > 32;
    out.replace(scales[0], 2, raw<std::uint16_t>(super ? 0x0c00 : 0x2800));
    if (scales.size() > 1) out.replace(scales[1], 2, raw<std::uint16_t>(super ? 0x0c00 : 0xb300));
    return out;
  }

  Rng rng_{7};
};

}  // namespace mneme::test

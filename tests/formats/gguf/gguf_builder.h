// Builds GGUF files byte by byte, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/rng.h"
#include "src/checkpoint/gguf_types.h"

namespace mneme::test {

class GgufBuilder {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> dims;  // innermost first, as in the file
    std::uint32_t type = 0;
    std::string data;
    std::optional<std::uint64_t> offset;  // else behind the one before
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
  // Random weights that are numbers in every type: scales of blocks are small and positive.
  void add(const std::string& name, std::vector<std::uint64_t> dims, std::uint32_t type) {
    std::uint64_t n = 1;
    for (const std::uint64_t d : dims) n *= d;
    std::string data;
    for (std::uint64_t i = 0; i < n; ++i) {
      const bool block = i % 32 == 0;
      if (block && (type == 2 || type == 8)) data += raw<std::uint16_t>(0x2800);  // 2^-5
      if (type == 0) data += raw(static_cast<float>(rng_.normal()));
      if (type == 1) data += raw(f16(static_cast<float>(rng_.normal())).bits);
      if (type == 30) data += raw(bf16(static_cast<float>(rng_.normal())).bits);
      if (type == 8 || (type == 2 && i % 2 == 0)) data += static_cast<char>(rng_.below(256));
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

  // Two layers, every type of tensor that is allowed; heads x head_dim is not the hidden size; two tokens fewer than
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
      b.add(p + "ffn_gate.weight", {64, 96}, 2);
      b.add(p + "ffn_up.weight", {64, 96}, 0);
      b.add(p + "ffn_down.weight", {96, 64}, 8);
    }
    return b;
  }

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
  }

 private:
  Rng rng_{7};
};

}  // namespace mneme::test

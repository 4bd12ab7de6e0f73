// Model configuration, independent of the file format.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/ops/norm_rope/rope.h"

namespace mneme {

// Where the RMSNorms of attention and feed-forward are: of their input, of their output, of both.
enum class NormOrder : std::uint8_t { kBefore, kBehind, kBoth };

// Of the feed-forward layer: silu(gate) * up, or gelu(gate) * up in its tanh form.
enum class Gate : std::uint8_t { kSilu, kGelu };

enum class Architecture : std::uint8_t {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kMistral3,
  kQwen3Moe,
  kGptOss,
  kGranite,
  kQwen3Vl,
  kQwen3VlMoe,
  kQwen25Vl,
  kSmolLm3,
  kSeedOss,
  kOlmo2,
  kOlmo3,
  kPhi3,
  kGlm4,
  kErnie45,
  kHunyuanDense,
  kGemma3,
  kQwen35,
  kQwen35Moe,
  kQwen3Next,
};
std::string_view architecture_name(Architecture a);  // "llama", ..., "qwen3moe", "gpt-oss": GGUF's where it has one

// A mixture of experts in place of the feed-forward layer.
struct ExpertConfig {
  std::int64_t n = 0;       // 0: dense
  std::int64_t n_used = 0;  // experts of a row
  std::int64_t ffn = 0;     // width of one
  bool normalise = true;    // the shares of a row's experts sum to 1
  bool biases = false;      // gpt-oss: of the router, and of each expert's gate, up and down
  // gpt-oss: gate is cut off above, up on both sides, and the product is (up + 1) gate sigmoid(1.702 gate). 0: SwiGLU.
  double limit = 0.0;
  // qwen3_5_moe, qwen3_next: width of an expert that all rows have, its output scaled by a sigmoid; 0: none
  std::int64_t shared = 0;
};

// Layers of Gated DeltaNet (qwen3_5, qwen3_next): a state of one size in place of keys and values.
struct DeltaConfig {
  std::int64_t n_k_heads = 0;  // of queries and keys; 0: the model has no such layers
  std::int64_t n_v_heads = 0;  // of values; a multiple of n_k_heads
  std::int64_t d_k = 0, d_v = 0;
  std::int64_t taps = 0;     // of the convolution
  bool tiled = false;        // value head j reads key head j mod n_k_heads; else j div (n_v_heads / n_k_heads)
  std::vector<bool> layers;  // which layers these are

  std::int64_t key_width() const { return n_k_heads * d_k; }
  std::int64_t value_width() const { return n_v_heads * d_v; }
  std::int64_t channels() const { return 2 * key_width() + value_width(); }  // of the convolution: q, k, v
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string name;  // from the file; may be empty
  std::int64_t n_layers = 0;
  std::int64_t hidden = 0;      // width of the residual stream
  std::int64_t ffn = 0;         // width of the feed-forward layer
  std::int64_t n_heads = 0;     // query heads
  std::int64_t n_kv_heads = 0;  // divides n_heads
  std::int64_t head_dim = 0;    // even; from the file, not hidden / n_heads
  std::int64_t vocab = 0;
  std::int64_t max_context = 0;     // trained context length
  std::int64_t sliding_window = 0;  // 0: none. Attention over this many last tokens
  std::vector<bool> windowed;       // gpt-oss: which layers have the window; empty: all of them
  double rms_eps = 1e-5;
  bool tied_embeddings = false;
  bool qkv_bias = false;        // qwen2, gpt-oss
  bool o_bias = false;          // gpt-oss: of the attention's output
  bool sinks = false;           // gpt-oss: an attention sink a head, a logit without a value
  bool qk_norm = false;         // qwen3: RMSNorm over each head's q and k before RoPE
  bool qk_norm_all = false;     // olmo2: with qk_norm, over the q of all heads together, and the k
  bool qk_norm_behind = false;  // hunyuan: with qk_norm, behind RoPE
  NormOrder norms = NormOrder::kBefore;
  std::vector<bool> unrotated;  // smollm3: which layers have no RoPE; empty: none of them
  bool plain_windows = false;   // olmo3: RoPE of layers with a window has the base alone, no scaling
  double window_theta = 0.0;    // gemma3: with plain_windows, their base; 0: that of the others
  Gate gate = Gate::kSilu;
  double embedding_scale = 1.0;  // of the rows of the embedding table
  double residual_scale = 1.0;   // of what a block adds to the residual stream
  double attention_scale = 0.0;  // of attention's logits; 0: 1 / sqrt(head_dim)
  double logit_divisor = 1.0;    // of the model's logits
  double logit_cap = 0.0;        // logits are cap tanh(logits / cap); 0: as they are
  RopeConfig rope;
  ExpertConfig experts;
  DeltaConfig delta;
  bool output_gate = false;  // qwen3_5: attention's output is multiplied by a sigmoid, whose rows follow each head's q
  // mistral3: after RoPE a query at position p is multiplied by 1 + temperature ln(1 + floor(p / temperature_context)).
  double temperature = 0.0;  // 0: none
  std::int64_t temperature_context = 0;

  std::int64_t group() const { return n_heads / n_kv_heads; }
  // The window of a layer; 0: none.
  std::int64_t window_of(std::int64_t layer) const { return windowed.empty() || windowed[layer] ? sliding_window : 0; }
  bool rotates(std::int64_t layer) const { return unrotated.empty() || !unrotated[layer]; }
  bool has_state(std::int64_t layer) const { return delta.n_k_heads > 0 && delta.layers[layer]; }
  std::int64_t n_state_layers() const {
    return delta.n_k_heads == 0 ? 0 : std::count(delta.layers.begin(), delta.layers.end(), true);
  }
  // Layers with keys and values. Caches and methods number these, from 0.
  std::int64_t n_kv_layers() const { return n_layers - n_state_layers(); }
};

}  // namespace mneme

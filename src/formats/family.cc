#include "src/formats/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/base/check.h"
#include "src/base/underlying.h"

namespace mneme {
namespace {

using enum Architecture;

constexpr auto kNeighbours = RopePairs::kNeighbours;

constexpr HfNorms kOlmoNorms = {
    .attn = "", .attn_behind = "post_attention_layernorm", .ffn = "", .ffn_behind = "post_feedforward_layernorm"};

constexpr Family kFamilies[] = {
    {.architecture = kLlama,
     .name = "llama",
     .gguf = "llama",
     .hf_type = "llama",
     .gguf_pairs = kNeighbours,
     .context = 2048},
    {.architecture = kMistral,
     .name = "mistral",
     .gguf = "llama",
     .hf_type = "mistral",
     .gguf_pairs = kNeighbours,
     .context = 131072,
     .window = WindowRule::kAlways},
    {.architecture = kQwen2,
     .name = "qwen2",
     .gguf = "qwen2",
     .hf_type = "qwen2",
     .window = WindowRule::kIfUsed,
     .qkv_bias = true},
    {.architecture = kQwen3,
     .name = "qwen3",
     .gguf = "qwen3",
     .hf_type = "qwen3",
     .head_dim = 128,
     .window = WindowRule::kIfUsed,
     .qk_norm = true},
    {.architecture = kMistral3,
     .name = "mistral3",
     .gguf = "mistral3",
     .hf_type = "ministral3",
     .hf_outer = "mistral3",
     .gguf_pairs = kNeighbours,
     .context = 262144,
     .head_dim = 128,
     .window = WindowRule::kAlways,
     .window_tokens = 0},
    {.architecture = kQwen3Moe,
     .name = "qwen3moe",
     .gguf = "qwen3moe",
     .hf_type = "qwen3_moe",
     .experts = ExpertNames::kOneByOne,
     .window = WindowRule::kIfUsed,
     .qk_norm = true},
    {.architecture = kGptOss,
     .name = "gpt-oss",
     .gguf = "gpt-oss",
     .hf_type = "gpt_oss",
     .context = 131072,
     .head_dim = 64,
     .experts = ExpertNames::kFused,
     .window = WindowRule::kByLayer,
     .window_tokens = 128,
     .full_period = 2,
     .qkv_bias = true,
     .gguf_ffn_norm = "post_attention_norm"},
    {.architecture = kGranite,
     .name = "granite",
     .gguf = "granite",
     .hf_type = "granite",
     .gguf_pairs = kNeighbours,
     .context = 2048,
     .multipliers = true},
    {.architecture = kQwen3Vl,
     .name = "qwen3vl",
     .gguf = "qwen3vl",
     .hf_type = "qwen3_vl_text",
     .hf_outer = "qwen3_vl",
     .context = 128000,
     .head_dim = 128,
     .theta = 5e5,
     .qk_norm = true},
    {.architecture = kQwen3VlMoe,
     .name = "qwen3vlmoe",
     .gguf = "qwen3vlmoe",
     .hf_type = "qwen3_vl_moe_text",
     .hf_outer = "qwen3_vl_moe",
     .context = 128000,
     .theta = 5e5,
     .experts = ExpertNames::kStacked,
     .qk_norm = true},
    {.architecture = kQwen25Vl,
     .name = "qwen2vl",
     .gguf = "qwen2vl",
     .hf_type = "qwen2_5_vl_text",
     .hf_outer = "qwen2_5_vl",
     .theta = 1e6,
     .window = WindowRule::kIfUsed,
     .qkv_bias = true},
    {.architecture = kSmolLm3,
     .name = "smollm3",
     .gguf = "smollm3",
     .hf_type = "smollm3",
     .gguf_pairs = kNeighbours,
     .theta = 2e6,
     .window = WindowRule::kIfUsed,
     .unrotated_period = 4},
    {.architecture = kSeedOss,
     .name = "seed_oss",
     .gguf = "seed_oss",
     .hf_type = "seed_oss",
     .context = 524288,
     .head_dim = 128,
     .qkv_bias = true,
     .bias_key = true,
     .gguf_ffn_norm = "post_attention_norm"},
    {.architecture = kOlmo2,
     .name = "olmo2",
     .gguf = "olmo2",
     .hf_type = "olmo2",
     .context = 2048,
     .full_period = 4,
     .plain_windows = true,
     .qk_norm = true,
     .qk_norm_all = true,
     .norms = kOlmoNorms},
    {.architecture = kOlmo3,
     .name = "olmo3",
     .gguf = "olmo2",
     .hf_type = "olmo3",
     .context = 2048,
     .theta = 5e5,
     .window = WindowRule::kByLayer,
     .full_period = 4,
     .plain_windows = true,
     .qk_norm = true,
     .qk_norm_all = true,
     .norms = kOlmoNorms},
    {.architecture = kPhi3,
     .name = "phi3",
     .gguf = "phi3",
     .hf_type = "phi3",
     .context = 4096,
     .window = WindowRule::kAlways,
     .window_tokens = 0,
     .partial_rope = true},
    {.architecture = kGlm4,
     .name = "glm4",
     .gguf = "glm4",
     .hf_type = "glm4",
     .gguf_pairs = kNeighbours,
     .hf_pairs = kNeighbours,
     .context = 131072,
     .head_dim = 128,
     .qkv_bias = true,
     .bias_key = true,
     .partial_rope = true,
     .rotary_share = 0.5,
     .norms = {.attn_behind = "post_self_attn_layernorm", .ffn_behind = "post_mlp_layernorm"}},
    {.architecture = kErnie45,
     .name = "ernie4_5",
     .gguf = "ernie4_5",
     .hf_type = "ernie4_5",
     .gguf_pairs = kNeighbours,
     .hf_pairs = kNeighbours,
     .context = 131072,
     .head_dim = 128,
     .theta = 5e5},
    {.architecture = kHunyuanDense,
     .name = "hunyuan-dense",
     .gguf = "hunyuan-dense",
     .hf_type = "hunyuan_v1_dense",
     .context = 2048,
     .qk_norm = true,
     .qk_norm_behind = true,
     .hf_q_norm = "query_layernorm",
     .hf_k_norm = "key_layernorm"},
    {.architecture = kGemma3,
     .name = "gemma3",
     .gguf = "gemma3",
     .hf_type = "gemma3_text",
     .hf_outer = "gemma3",
     .context = 131072,
     .head_dim = 256,
     .theta = 1e6,
     .window_theta = 1e4,
     .window = WindowRule::kByLayer,
     .full_period = 6,
     .plain_windows = true,
     .gate = Gate::kGelu,
     .qk_norm = true,
     .multipliers = true,
     .scales_embeddings = true,
     .norms_from_one = true,
     .hf = {.heads = 8, .kv_heads = 4, .vocab = 262208, .query_scalar = 256, .tied_embeddings = true},
     .norms = {.attn_behind = "post_attention_layernorm",
               .ffn = "pre_feedforward_layernorm",
               .ffn_behind = "post_feedforward_layernorm"}},
    {.architecture = kQwen35,
     .name = "qwen35",
     .gguf = "qwen35",
     .hf_type = "qwen3_5_text",
     .hf_outer = "qwen3_5",
     .head_dim = 256,
     .qk_norm = true,
     .norms_from_one = true,
     .delta = true,
     .tiled_in_gguf = true,
     .partial_rope = true,
     .rotary_share = 0.25,
     .gguf_ffn_norm = "post_attention_norm"},
    {.architecture = kQwen35Moe,
     .name = "qwen35moe",
     .gguf = "qwen35moe",
     .hf_type = "qwen3_5_moe_text",
     .hf_outer = "qwen3_5_moe",
     .head_dim = 256,
     .experts = ExpertNames::kStackedRows,
     .qk_norm = true,
     .norms_from_one = true,
     .delta = true,
     .tiled_in_gguf = true,
     .partial_rope = true,
     .rotary_share = 0.25,
     .gguf_ffn_norm = "post_attention_norm"},
    {.architecture = kQwen3Next,
     .name = "qwen3next",
     .gguf = "qwen3next",
     .hf_type = "qwen3_next",
     .head_dim = 256,
     .experts = ExpertNames::kStackedRows,
     .qk_norm = true,
     .norms_from_one = true,
     .delta = true,
     .fused_by_key_head = true,
     .partial_rope = true,
     .rotary_share = 0.25,
     .gguf_ffn_norm = "post_attention_norm"},
};

constexpr Multiplier kMultipliers[] = {
    {&ModelConfig::embedding_scale, "embedding_multiplier", "embedding_scale"},
    {&ModelConfig::residual_scale, "residual_multiplier", "residual_scale"},
    {&ModelConfig::attention_scale, "attention_multiplier", "attention.scale"},
    {&ModelConfig::logit_divisor, "logits_scaling", "logit_scale"},
};

const Family* find(std::string_view Family::*key, std::string_view value) {
  const auto* const row = std::ranges::find(kFamilies, value, key);
  return row == std::end(kFamilies) ? nullptr : row;
}

// Each once, in the table's order.
std::string names_of(std::string_view Family::*key) {
  std::string all;
  std::vector<std::string_view> seen;
  for (const Family& f : kFamilies) {
    if (std::ranges::find(seen, f.*key) != seen.end()) continue;
    seen.push_back(f.*key);
    all += fmt::format("{}{}", all.empty() ? "" : ", ", f.*key);
  }
  return all;
}

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

const Family& family_of(Architecture architecture) {
  for (const Family& f : kFamilies)
    if (f.architecture == architecture) return f;
  MNEME_CHECK(false, "architecture {} has no row in family.cc", underlying(architecture));
}

void set_family_fields(ModelConfig& c) {
  const Family& f = family_of(c.architecture);
  c.qkv_bias = f.qkv_bias;
  c.o_bias = c.sinks = f.experts == ExpertNames::kFused;
  c.qk_norm = f.qk_norm, c.qk_norm_all = f.qk_norm_all, c.qk_norm_behind = f.qk_norm_behind;
  c.norms = f.norms.attn.empty()          ? NormOrder::kBehind
            : f.norms.attn_behind.empty() ? NormOrder::kBefore
                                          : NormOrder::kBoth;
  c.plain_windows = f.plain_windows;
  c.window_theta = f.window_theta;
  c.gate = f.gate;
  c.output_gate = f.delta;
}

const Family* family_of_gguf(std::string_view architecture) {
  return find(&Family::gguf, architecture);
}

const Family* family_of_hf(std::string_view model_type) {
  return find(&Family::hf_type, model_type);
}

std::string gguf_families() {
  return names_of(&Family::gguf);
}

std::string hf_families() {
  return names_of(&Family::hf_type);
}

std::span<const Multiplier> multipliers() {
  return kMultipliers;
}

}  // namespace mneme

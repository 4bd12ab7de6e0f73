// What the models of an architecture have in common, in files of either format: one row a architecture. A dense variant
// of a known layer is a row of the table in family.cc, and numbers of its own rows of kMultipliers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "src/formats/model_config.h"

namespace mneme {

// Tensors of experts in folders: none, the model is dense; gate_proj, up_proj and down_proj of each; gpt-oss's stacks;
// gate_up_proj [E, hidden, 2 ffn] and down_proj [E, ffn, hidden], the shares of a row's experts always summing to 1;
// the same as [E, 2 ffn, hidden] and [E, hidden, ffn], or one by one.
enum class ExpertNames : std::uint8_t { kNone, kOneByOne, kFused, kStacked, kStackedRows };
enum class WindowRule : std::uint8_t { kNone, kAlways, kIfUsed, kByLayer };

// Names of a layer's norms in folders, before and behind attention and feed-forward; empty: it has none there.
struct HfNorms {
  std::string_view attn = "input_layernorm", attn_behind = "", ffn = "post_attention_layernorm", ffn_behind = "";
};

// Sizes that published folders leave to transformers' class; 0: they are always there.
struct HfDefaults {
  std::int64_t heads = 0, kv_heads = 0, vocab = 0, query_scalar = 0;  // attention's scale is query_scalar^-1/2
  bool tied_embeddings = false;
};

struct Family {
  Architecture architecture;
  std::string_view name;           // ours, and GGUF's where it has one
  std::string_view gguf;           // general.architecture of files that `mneme convert` writes
  std::string_view hf_type;        // model_type of config.json; of a model that reads pictures, of its text_config
  std::string_view hf_outer = "";  // model_type around a text_config; empty: none
  RopePairs gguf_pairs = RopePairs::kHalves;  // order of the rows of q and k
  RopePairs hf_pairs = RopePairs::kHalves;    // the same in folders
  std::int64_t context = 32768;               // where config.json has none
  std::int64_t head_dim = 0;                  // the same; 0: hidden / heads
  double theta = 10000.0;                     // base of RoPE; the same
  double window_theta = 0.0;                  // of layers with a window; the same. 0: theta
  ExpertNames experts = ExpertNames::kNone;
  WindowRule window = WindowRule::kNone;  // of config.json
  std::int64_t window_tokens = 4096;      // where config.json has none
  std::size_t full_period = 0;            // every so-manieth layer attends everything, the others a window; 0: no rule
  std::size_t unrotated_period = 0;       // every so-manieth layer has no RoPE; 0: all have it
  bool plain_windows = false;             // ModelConfig's
  Gate gate = Gate::kSilu;                // the same
  bool qkv_bias = false;                  // always; where `bias_key`, if config.json's attention_bias says so
  bool bias_key = false;
  bool qk_norm = false, qk_norm_all = false, qk_norm_behind = false;  // ModelConfig's
  bool multipliers = false;                                           // multipliers() are read
  bool scales_embeddings = false;                                     // by sqrt(hidden), where a file has no multiplier
  bool norms_from_one = false;  // folders have the weights of RMSNorm less 1, but for linear_attn.norm
  HfDefaults hf = {};
  bool delta = false;              // Gated DeltaNet in most layers, an output gate in the others, a shared expert
  bool tiled_in_gguf = false;      // DeltaConfig::tiled, of GGUF files
  bool fused_by_key_head = false;  // in_proj_qkvz and in_proj_ba, GGUF's ssm_ba
  bool partial_rope = false;       // RoPE may be over a part of the head
  double rotary_share = 1.0;       // of the head, where config.json does not say
  HfNorms norms = {};
  std::string_view gguf_ffn_norm = "ffn_norm";  // of the norm before the feed-forward layer
  std::string_view hf_q_norm = "q_norm", hf_k_norm = "k_norm";
};

std::span<const Family> families();
// Sets what follows from the architecture: biases, norms and their order.
void set_family_fields(ModelConfig& config);
const Family& family_of(Architecture architecture);
// The first row with that general.architecture, and that model_type; null: no build runs it.
const Family* family_of_gguf(std::string_view architecture);
const Family* family_of_hf(std::string_view model_type);
// "llama, mistral, ...", for messages.
std::string gguf_families();
std::string hf_families();

// A number that scales a part of the computation; a file that lacks it, or has 0, leaves ModelConfig's default.
struct Multiplier {
  double ModelConfig::*member;
  const char *hf, *gguf;  // keys; GGUF's behind the architecture
};
std::span<const Multiplier> multipliers();

}  // namespace mneme

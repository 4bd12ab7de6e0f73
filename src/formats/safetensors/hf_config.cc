#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/formats/config_check.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/formats/wrong_file.h"

namespace mneme {
namespace {

constexpr std::int64_t kMaxContext = std::int64_t{1} << 31;
constexpr double kGptOssAlpha = 1.702;

Architecture architecture_of(const JsonRef& config) {
  const std::string type = config.at("model_type").string();
  if (type == "llama") return Architecture::kLlama;
  if (type == "mistral") return Architecture::kMistral;
  if (type == "qwen2") return Architecture::kQwen2;
  if (type == "qwen3") return Architecture::kQwen3;
  if (type == "ministral3") return Architecture::kMistral3;
  if (type == "qwen3_moe") return Architecture::kQwen3Moe;
  if (type == "gpt_oss") return Architecture::kGptOss;
  if (is_embedding_model(type)) refuse_embedding_model(config.file(), "model_type", type);
  fail(
      ErrorKind::kUnsupported,
      "{}: model_type '{}' is not supported: expected llama, mistral, qwen2, qwen3, qwen3_moe, ministral3, gpt_oss, or "
      "mistral3 (its text). Take a model of one of these families, or ask for '{}' in an issue",
      config.file(), type, type);
}

// Rejects features that change the arithmetic and are not implemented.
void refuse_unknown(const JsonRef& config, Architecture architecture) {
  if (const std::string act = config.string("hidden_act", "silu"); act != "silu")
    fail(ErrorKind::kUnsupported, "{}: hidden_act '{}'; expected silu", config.file(), act);
  if (config.boolean("mlp_bias", false))
    fail(ErrorKind::kUnsupported, "{}: mlp_bias: biases in the feed-forward layer", config.file());
  if (architecture == Architecture::kGptOss) {
    if (!config.boolean("attention_bias", true))
      fail(ErrorKind::kUnsupported, "{}: attention_bias false in a gpt-oss model", config.file());
    if (const double alpha = config.number("swiglu_alpha", kGptOssAlpha); alpha != kGptOssAlpha)
      fail(ErrorKind::kUnsupported, "{}: swiglu_alpha: expected {}, found {}", config.file(), kGptOssAlpha, alpha);
    return;
  }
  if (architecture != Architecture::kQwen2 && config.boolean("attention_bias", false))
    fail(ErrorKind::kUnsupported, "{}: attention_bias: biases in the attention of a {} model", config.file(),
         architecture_name(architecture));
}

std::int64_t read_head_dim(const JsonRef& config, const ModelConfig& c) {
  if (const auto v = config.find("head_dim")) return v->integer();
  if (c.architecture == Architecture::kQwen3 || c.architecture == Architecture::kMistral3) return 128;
  if (c.architecture == Architecture::kGptOss) return 64;
  if (c.n_heads < 1 || c.hidden < 1 || c.hidden % c.n_heads != 0)
    fail(ErrorKind::kFormat, "{}: head_dim is missing and hidden_size {} is not a multiple of num_attention_heads {}",
         config.file(), c.hidden, c.n_heads);
  return c.hidden / c.n_heads;
}

std::int64_t default_context(Architecture a) {
  switch (a) {
    case Architecture::kLlama:
      return 2048;
    case Architecture::kMistral:
    case Architecture::kGptOss:
      return 131072;
    case Architecture::kMistral3:
      return 262144;
    default:
      return 32768;
  }
}

// The layers with a window, of gpt-oss.
std::vector<bool> read_kinds(const JsonRef& config, std::int64_t n_layers) {
  const auto types = config.find("layer_types");
  if (!types) return alternating_windows(n_layers);
  std::vector<bool> windowed;
  for (const JsonRef& type : types->elements()) {
    if (type.string() != "sliding_attention" && type.string() != "full_attention")
      fail(ErrorKind::kUnsupported, "{}: {} '{}'", config.file(), type.path(), type.string());
    windowed.push_back(type.string() == "sliding_attention");
  }
  return windowed;
}

// Newer files list the kind of each layer; older ones give the first layer with a window (qwen2, qwen3) or only its
// size (mistral).
std::int64_t read_window(const JsonRef& config, const ModelConfig& c) {
  if (c.architecture == Architecture::kGptOss) return config.integer("sliding_window", 128);
  const bool mistral = c.architecture == Architecture::kMistral || c.architecture == Architecture::kMistral3;
  const bool qwen = !mistral && c.architecture != Architecture::kLlama;
  if (!qwen && !mistral) return 0;
  if (qwen && !config.boolean("use_sliding_window", false)) return 0;
  // null: none; absent: the class's default, which is none for ministral3.
  const bool absent = c.architecture != Architecture::kMistral3 && !config.value().contains("sliding_window");
  const std::int64_t window = config.integer("sliding_window", absent ? 4096 : 0);
  std::int64_t sliding = c.n_layers;  // first layer with a window
  if (const auto types = config.find("layer_types")) {
    sliding = 0;
    for (const JsonRef& type : types->elements()) {
      if (type.string() != "sliding_attention" && type.string() != "full_attention")
        fail(ErrorKind::kUnsupported, "{}: {} '{}'", config.file(), type.path(), type.string());
      sliding += type.string() == "sliding_attention" ? 1 : 0;
    }
  } else if (qwen) {
    sliding =
        std::max<std::int64_t>(0, c.n_layers - std::max<std::int64_t>(0, config.integer("max_window_layers", 28)));
  }
  if (sliding == 0) return 0;
  if (sliding != c.n_layers)
    fail(ErrorKind::kUnsupported, "{}: {} of {} layers have a sliding window; this build needs all or none",
         config.file(), sliding, c.n_layers);
  return window;
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// Another name of what `key` says. Both are in a file only where a program added its own beside the one it found.
//
// Errors  kFormat: two values; the message names both keys.
void expect_same(const JsonRef& config, const char* key, const char* other) {
  const auto a = config.find(key), b = config.find(other);
  if (a && b && a->integer() != b->integer())
    fail(ErrorKind::kFormat, "{}: {} is {} and {} is {}: expected one value; remove the key that is wrong",
         config.file(), a->path(), a->integer(), b->path(), b->integer());
}

void read_yarn(const JsonRef& s, RopeConfig& r) {
  r.beta_fast = s.number("beta_fast", r.beta_fast);
  r.beta_slow = s.number("beta_slow", r.beta_slow);
  r.truncate = s.boolean("truncate", true);
  const double mscale = s.number("mscale", 0.0), mscale_all = s.number("mscale_all_dim", 0.0);
  if (const auto given = s.find("attention_factor")) {
    r.attention_factor = given->number();
    if (!(r.attention_factor > 0.0)) given->wrong("more than 0");
  } else if (mscale != 0.0 && mscale_all != 0.0) {
    r.attention_factor = yarn_scale(r.factor, mscale) / yarn_scale(r.factor, mscale_all);
    if (!(r.attention_factor > 0.0)) s.at("mscale_all_dim").wrong("a scale of cos and sin of more than 0");
  } else if (r.factor <= 1.0) {
    r.attention_factor = 1.0;  // where nothing is extended nothing is scaled
  }
}

RopeScaling scaling_of(const JsonRef& s) {
  const auto type = s.find("rope_type") ? s.find("rope_type") : s.find("type");
  if (!type || type->string() == "default") return RopeScaling::kNone;
  const std::string& name = type->string();
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "dynamic") return RopeScaling::kDynamic;
  if (name == "yarn") return RopeScaling::kYarn;
  if (name == "llama3") return RopeScaling::kLlama3;
  fail(ErrorKind::kUnsupported, "{}: {} '{}'; this build knows default, linear, dynamic, yarn, llama3", s.file(),
       type->path(), name);
}

// The section of RoPE: a rope_scaling that says anything replaces rope_parameters whole.
//
// Source  transformers 5.24, convert_rope_params_to_dict
std::optional<JsonRef> rope_section(const JsonRef& config) {
  const auto scaling = config.find("rope_scaling");
  if (!scaling) return config.find("rope_parameters");
  if (!scaling->is_object()) scaling->wrong("an object");
  return scaling->value().empty() ? config.find("rope_parameters") : scaling;
}

// A number of the section, else of the top level. Errors  kFormat: rope_parameters, which rope_scaling replaces, has
// another: transformers loses it without a word.
double section_number(const JsonRef& config, const JsonRef& section, const char* key, double otherwise) {
  const double taken = section.number(key, config.number(key, otherwise));
  const auto parameters = config.find("rope_parameters");
  if (!parameters || !parameters->is_object() || parameters->path() == section.path()) return taken;
  if (const auto lost = parameters->find(key); lost && lost->number() != taken)
    fail(ErrorKind::kFormat,
         "{}: {} is {}, but {} replaces rope_parameters and leaves {} at {}: put {} into {}, or remove one section",
         config.file(), lost->path(), lost->number(), section.path(), key, taken, key, section.path());
  return taken;
}

// The length before scaling; of llama3 and yarn the top level's wins.
//
// Source  transformers 5.24, standardize_rope_params
std::optional<JsonRef> original_length(const JsonRef& config, const JsonRef& section, RopeScaling scaling) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const auto top = config.find(kKey);
  const bool takes_top = scaling == RopeScaling::kLlama3 || scaling == RopeScaling::kYarn;
  return takes_top && top ? top : section.find(kKey);
}

// Extends max_context where the file gives the length before scaling.
void read_rope(const JsonRef& config, ModelConfig& c) {
  RopeConfig& r = c.rope;
  const auto s = rope_section(config);
  r.theta = config.number("rope_theta", 10000.0);
  double partial = config.number("partial_rotary_factor", 1.0);
  if (s) {
    if (s->find("full_attention") || s->find("sliding_attention"))
      fail(ErrorKind::kUnsupported, "{}: {} differs between kinds of layers", config.file(), s->path());
    r.theta = section_number(config, *s, "rope_theta", 10000.0);
    partial = section_number(config, *s, "partial_rotary_factor", 1.0);
    r.scaling = scaling_of(*s);
  }
  if (partial != 1.0) fail(ErrorKind::kUnsupported, "{}: RoPE over a part of the head ({})", config.file(), partial);
  if (r.scaling == RopeScaling::kNone) return;
  const auto original = original_length(config, *s, r.scaling);
  if (r.scaling == RopeScaling::kLlama3 && !original) s->at("original_max_position_embeddings");
  r.original_context = original ? original->integer() : c.max_context;
  const auto factor = s->find("factor");
  if (factor) {
    r.factor = factor->number();
    if (!(r.factor > 0.0)) factor->wrong("more than 0");
  } else if (original && r.scaling == RopeScaling::kYarn && r.original_context > 0) {
    r.factor = ratio(c.max_context, r.original_context);
  } else {
    s->at("factor");
  }
  if (r.scaling == RopeScaling::kYarn) read_yarn(*s, r);
  if (r.scaling == RopeScaling::kLlama3) {
    r.low_freq_factor = s->at("low_freq_factor").number();
    r.high_freq_factor = s->at("high_freq_factor").number();
    return;  // max_position_embeddings is the length after scaling
  }
  const double scaled = real(r.original_context) * r.factor;
  if (scaled < real(kMaxContext)) c.max_context = std::max(c.max_context, static_cast<std::int64_t>(scaled));
}

ExpertConfig read_gpt_oss_experts(const JsonRef& config) {
  expect_same(config, "num_experts_per_tok", "experts_per_token");
  expect_same(config, "num_local_experts", "num_experts");
  return {.n = config.at("num_local_experts").integer(),
          .n_used = config.integer(config.find("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token", 4),
          .ffn = config.at("intermediate_size").integer(),
          .normalise = true,
          .biases = true,
          .limit = config.number("swiglu_limit", kGptOssLimit)};
}

// Every layer has the experts.
ExpertConfig read_experts(const JsonRef& config) {
  if (const auto dense = config.find("mlp_only_layers"); dense && !dense->elements().empty())
    fail(ErrorKind::kUnsupported, "{}: mlp_only_layers: layers without experts among others with them", config.file());
  if (const std::int64_t step = config.integer("decoder_sparse_step", 1); step != 1)
    fail(ErrorKind::kUnsupported, "{}: decoder_sparse_step: expected 1, found {}", config.file(), step);
  expect_same(config, "num_local_experts", "num_experts");
  expect_same(config, "num_experts_per_tok", "experts_per_token");
  const char* count = config.find("num_local_experts") ? "num_local_experts" : "num_experts";
  return {.n = config.at(count).integer(),
          .n_used = config.at("num_experts_per_tok").integer(),
          .ffn = config.at("moe_intermediate_size").integer(),
          .normalise = config.boolean("norm_topk_prob", false)};
}

// Source  transformers 5.24: the section and the original length are those of RoPE.
void read_temperature(const JsonRef& config, ModelConfig& c) {
  const auto section = rope_section(config);
  if (!section) return;
  c.temperature = section->number("llama_4_scaling_beta", 0.0);
  if (c.temperature == 0.0) return;
  const auto original = original_length(config, *section, scaling_of(*section));
  c.temperature_context = original ? original->integer() : section->at("original_max_position_embeddings").integer();
}

}  // namespace

std::optional<JsonRef> text_part(const JsonRef& config) {
  if (config.string("model_type", "") != "mistral3") return std::nullopt;
  return config.at("text_config");
}

ModelConfig read_hf_config(const JsonRef& whole) {
  const JsonRef config = text_part(whole).value_or(whole);
  ModelConfig c;
  c.architecture = architecture_of(config);
  refuse_unknown(config, c.architecture);
  c.n_layers = config.at("num_hidden_layers").integer();
  c.hidden = config.at("hidden_size").integer();
  c.ffn = config.at("intermediate_size").integer();
  c.n_heads = config.at("num_attention_heads").integer();
  c.n_kv_heads = config.integer("num_key_value_heads", c.n_heads);
  c.vocab = config.at("vocab_size").integer();
  c.head_dim = read_head_dim(config, c);
  c.max_context = config.integer("max_position_embeddings", default_context(c.architecture));
  c.sliding_window = read_window(config, c);
  c.rms_eps = config.number("rms_norm_eps", 1e-6);
  // A model that reads pictures has the flag at the top level, true by default. HfCheckpoint prefers a head of other
  // values where the folder has one.
  const bool pictures = text_part(whole).has_value();
  c.tied_embeddings = whole.boolean("tie_word_embeddings", pictures);
  const bool gpt_oss = c.architecture == Architecture::kGptOss;
  c.qkv_bias = c.architecture == Architecture::kQwen2 || gpt_oss;
  c.qk_norm = c.architecture == Architecture::kQwen3 || c.architecture == Architecture::kQwen3Moe;
  if (c.architecture == Architecture::kQwen3Moe) c.experts = read_experts(config);
  if (gpt_oss) {
    c.experts = read_gpt_oss_experts(config);
    c.windowed = read_kinds(config, c.n_layers);
  }
  if (c.architecture == Architecture::kMistral3) read_temperature(config, c);
  c.rope.pairs = RopePairs::kHalves;
  read_rope(config, c);
  check_config(c, config.file());
  return c;
}

}  // namespace mneme

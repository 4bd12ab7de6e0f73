#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/formats/config_check.h"
#include "src/formats/family.h"
#include "src/formats/safetensors/hf_gemma.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/formats/wrong_file.h"

namespace mneme {
namespace {

constexpr std::int64_t kMaxContext = std::int64_t{1} << 31;
constexpr double kGptOssAlpha = 1.702;

Architecture architecture_of(const JsonRef& config) {
  const std::string type = config.at("model_type").string();
  if (const Family* family = family_of_hf(type)) return family->architecture;
  if (const Family* flat = family_of_hf(type + "_text")) return flat->architecture;  // old folders of qwen2_5_vl
  if (is_embedding_model(type)) refuse_embedding_model(config.file(), "model_type", type);
  fail(ErrorKind::kUnsupported,
       "{}: model_type '{}' is not supported: expected one of {}. Take a model of one of these families, or ask for "
       "'{}' in an issue",
       config.file(), type, hf_families(), type);
}

// Rejects features that change the arithmetic and are not implemented.
void refuse_unknown(const JsonRef& config, Architecture architecture) {
  if (const std::string act = config.string("hidden_act", "silu");
      act != "silu" && family_of(architecture).gate == Gate::kSilu)
    fail(ErrorKind::kUnsupported, "{}: hidden_act '{}'; expected silu", config.file(), act);
  if (config.boolean("mlp_bias", false))
    fail(ErrorKind::kUnsupported, "{}: mlp_bias: biases in the feed-forward layer", config.file());
  for (const char* key : {"use_bias", "attention_out_bias"})
    if (config.boolean(key, false))
      fail(ErrorKind::kUnsupported, "{}: {}: biases that no build adds", config.file(), key);
  const Family& family = family_of(architecture);
  if (family.experts == ExpertNames::kFused) {
    if (!config.boolean("attention_bias", true))
      fail(ErrorKind::kUnsupported, "{}: attention_bias false in a gpt-oss model", config.file());
    if (const double alpha = config.number("swiglu_alpha", kGptOssAlpha); alpha != kGptOssAlpha)
      fail(ErrorKind::kUnsupported, "{}: swiglu_alpha: expected {}, found {}", config.file(), kGptOssAlpha, alpha);
    return;
  }
  if (!family.qkv_bias && !family.bias_key && config.boolean("attention_bias", false))
    fail(ErrorKind::kUnsupported, "{}: attention_bias: biases in the attention of a {} model", config.file(),
         architecture_name(architecture));
}

std::int64_t read_head_dim(const JsonRef& config, const ModelConfig& c) {
  if (const auto v = config.find("head_dim")) return v->integer();
  if (const std::int64_t usual = family_of(c.architecture).head_dim; usual != 0) return usual;
  if (c.n_heads < 1 || c.hidden < 1 || c.hidden % c.n_heads != 0)
    fail(ErrorKind::kFormat, "{}: head_dim is missing and hidden_size {} is not a multiple of num_attention_heads {}",
         config.file(), c.hidden, c.n_heads);
  return c.hidden / c.n_heads;
}

// The layers with a window, by layer_types; none: not listed.
std::optional<std::vector<bool>> read_kinds(const JsonRef& config) {
  const auto types = config.find("layer_types");
  if (!types) return std::nullopt;
  std::vector<bool> windowed;
  for (const JsonRef& type : types->elements()) {
    if (type.string() != "sliding_attention" && type.string() != "full_attention")
      fail(ErrorKind::kUnsupported, "{}: {} '{}'", config.file(), type.path(), type.string());
    windowed.push_back(type.string() == "sliding_attention");
  }
  return windowed;
}

// Sets the window and the layers that have it. Newer files list the kind of each layer; older ones give the first layer
// with a window (qwen2, qwen3) or only its size (mistral).
void read_window(const JsonRef& config, ModelConfig& c) {
  const Family& family = family_of(c.architecture);
  const bool by_layer = family.window == WindowRule::kByLayer, if_used = family.window == WindowRule::kIfUsed;
  if (family.window == WindowRule::kNone) return;
  if (if_used && !config.boolean("use_sliding_window", false)) return;
  // null: none; absent: the class's default.
  const bool absent = !config.value().contains("sliding_window");
  const std::int64_t window = config.integer("sliding_window", absent ? family.window_tokens : 0);
  std::vector<bool> windowed(static_cast<std::size_t>(std::clamp<std::int64_t>(c.n_layers, 0, 1 << 16)), true);
  if (const auto kinds = read_kinds(config)) {
    windowed = *kinds;
  } else if (if_used) {
    const std::int64_t first = std::max<std::int64_t>(0, config.integer("max_window_layers", 28));
    for (std::size_t i = 0; i < windowed.size() && std::cmp_less(i, first); ++i) windowed[i] = false;
  } else if (by_layer) {
    const std::int64_t period = config.integer("sliding_window_pattern", static_cast<std::int64_t>(family.full_period));
    if (period < 1) config.at("sliding_window_pattern").wrong("1 or more");
    windowed = windows_by_period(c.n_layers, static_cast<std::size_t>(period));
  }
  const auto sliding = std::ranges::count(windowed, true);
  if (sliding == 0 && !by_layer) return;
  c.sliding_window = window;
  if (by_layer || sliding != std::ssize(windowed)) c.windowed = windowed;
}

// smollm3 lists a 1 for each layer that has RoPE.
std::vector<bool> read_unrotated(const JsonRef& config, const ModelConfig& c) {
  const auto rotated = config.find("no_rope_layers");
  const auto usual = static_cast<std::int64_t>(family_of(c.architecture).unrotated_period);
  if (usual == 0) return {};
  const std::int64_t interval = config.integer("no_rope_layer_interval", usual);
  if (!rotated && interval != usual)
    fail(ErrorKind::kUnsupported, "{}: no_rope_layer_interval {} without no_rope_layers: expected {}, or the list",
         config.file(), interval, usual);
  if (!rotated) return unrotated_by_layer(c.architecture, c.n_layers);
  std::vector<bool> unrotated;
  for (const JsonRef& one : rotated->elements()) unrotated.push_back(one.integer() == 0);
  return unrotated;
}

void read_multipliers(const JsonRef& config, ModelConfig& c) {
  for (const Multiplier& m : multipliers())
    if (const double v = config.number(m.hf, 0.0); v != 0.0) c.*m.member = v;
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
  if (!type || type->string() == "default" || type->string() == "mrope") return RopeScaling::kNone;
  const std::string& name = type->string();
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "dynamic") return RopeScaling::kDynamic;
  if (name == "yarn") return RopeScaling::kYarn;
  if (name == "llama3") return RopeScaling::kLlama3;
  if (name == "longrope" || name == "su") return RopeScaling::kLongRope;
  fail(ErrorKind::kUnsupported, "{}: {} '{}'; this build knows default, linear, dynamic, yarn, llama3, longrope",
       s.file(), type->path(), name);
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
  const bool takes_top =
      scaling == RopeScaling::kLlama3 || scaling == RopeScaling::kYarn || scaling == RopeScaling::kLongRope;
  return takes_top && top ? top : section.find(kKey);
}

// phi3. The scale of cos and sin follows from how many times longer contexts become, whichever factors are used.
//
// Source  transformers 5.24, _compute_longrope_parameters
void read_longrope(const JsonRef& s, ModelConfig& c) {
  RopeConfig& r = c.rope;
  const auto read = [&](const char* key) {
    std::vector<float> factors;
    for (const JsonRef& f : s.at(key).elements()) factors.push_back(static_cast<float>(f.number()));
    return factors;
  };
  r.short_factors = read("short_factor");
  r.long_factors = read("long_factor");
  const double longer = ratio(c.max_context, std::max<std::int64_t>(r.original_context, 1));
  const bool scaled = longer > 1.0 && r.original_context > 1;
  r.attention_factor = scaled ? std::sqrt(1.0 + std::log(longer) / std::log(real(r.original_context))) : 1.0;
  if (const auto given = s.find("attention_factor")) r.attention_factor = given->number();
}

// olmo3 and gemma3 have a section for each kind of layer: that of layers with a window has no scaling, and gemma3's has a
// base of its own.
std::optional<JsonRef> rope_of_full_layers(const JsonRef& config, ModelConfig& c) {
  const auto s = rope_section(config);
  if (!s || !(s->find("full_attention") || s->find("sliding_attention"))) return s;
  if (!c.plain_windows)
    fail(ErrorKind::kUnsupported, "{}: {} differs between kinds of layers", config.file(), s->path());
  const JsonRef full = s->at("full_attention"), windows = s->at("sliding_attention");
  const bool one_base = c.window_theta == 0.0;
  const double usual = family_of(c.architecture).theta;
  const double theta = windows.number("rope_theta", one_base ? usual : c.window_theta);
  if (scaling_of(windows) != RopeScaling::kNone || (one_base && theta != full.number("rope_theta", usual)))
    fail(ErrorKind::kUnsupported, "{}: {}: expected {}no scaling", config.file(), windows.path(),
         one_base ? "the rope_theta of full_attention and " : "");
  if (!one_base) c.window_theta = theta;
  return full;
}

// hunyuan: `dynamic` with alpha enlarges the base once, whatever the length.
bool read_alpha(const JsonRef& s, ModelConfig& c) {
  const double alpha = s.number("alpha", 0.0);
  if (c.rope.scaling != RopeScaling::kDynamic || alpha == 0.0 || c.head_dim <= 2) return false;
  if (!(alpha > 0.0)) s.at("alpha").wrong("more than 0");
  const double d = real(c.head_dim);
  c.rope.theta *= std::pow(alpha, d / (d - 2.0));
  c.rope.scaling = RopeScaling::kNone;
  return true;
}

// Extends max_context where the file gives the length before scaling.
void read_rope(const JsonRef& config, ModelConfig& c) {
  RopeConfig& r = c.rope;
  const auto s = rope_of_full_layers(config, c);
  const double theta = family_of(c.architecture).theta;
  r.theta = config.number("rope_theta", theta);
  const double share = family_of(c.architecture).rotary_share;
  double partial = config.number("partial_rotary_factor", share);
  if (s) {
    r.theta = section_number(config, *s, "rope_theta", theta);
    partial = section_number(config, *s, "partial_rotary_factor", share);
    r.scaling = scaling_of(*s);
  }
  if (partial != 1.0) {
    if (!family_of(c.architecture).partial_rope)
      fail(ErrorKind::kUnsupported, "{}: RoPE over a part of the head ({}) in a {} model", config.file(), partial,
           architecture_name(c.architecture));
    if (!(partial > 0.0 && partial < 1.0))
      fail(ErrorKind::kFormat, "{}: partial_rotary_factor: expected 0 to 1, found {}", config.file(), partial);
    r.rotary_dim = static_cast<std::int64_t>(partial * real(c.head_dim));
    if (r.rotary_dim < 2)
      fail(ErrorKind::kFormat, "{}: partial_rotary_factor {}: less than two values of a head of {} would rotate",
           config.file(), partial, c.head_dim);
  }
  if (r.scaling == RopeScaling::kNone || read_alpha(*s, c)) return;
  const auto original = original_length(config, *s, r.scaling);
  if (r.scaling == RopeScaling::kLlama3 && !original) s->at("original_max_position_embeddings");
  r.original_context = original ? original->integer() : c.max_context;
  if (r.scaling == RopeScaling::kLongRope) return read_longrope(*s, c);
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
  if (c.window_theta != 0.0) return;  // gemma3: max_position_embeddings is the length after scaling, too
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
ExpertConfig read_experts(const JsonRef& config, ExpertNames names) {
  if (const auto dense = config.find("mlp_only_layers"); dense && !dense->elements().empty())
    fail(ErrorKind::kUnsupported, "{}: mlp_only_layers: layers without experts among others with them", config.file());
  if (const std::int64_t step = config.integer("decoder_sparse_step", 1); step != 1)
    fail(ErrorKind::kUnsupported, "{}: decoder_sparse_step: expected 1, found {}", config.file(), step);
  expect_same(config, "num_local_experts", "num_experts");
  expect_same(config, "num_experts_per_tok", "experts_per_token");
  const char* count = config.find("num_local_experts") ? "num_local_experts" : "num_experts";
  const bool shares = names == ExpertNames::kStackedRows;  // which is also when an expert is shared by all rows
  return {.n = config.at(count).integer(),
          .n_used = config.at("num_experts_per_tok").integer(),
          .ffn = config.at("moe_intermediate_size").integer(),
          .normalise = config.boolean("norm_topk_prob", shares),
          .shared = shares ? config.integer("shared_expert_intermediate_size", 512) : 0};
}

// Gated DeltaNet: its sizes, and which layers have it.
void read_delta(const JsonRef& config, ModelConfig& c) {
  DeltaConfig& d = c.delta;
  d.n_k_heads = config.integer("linear_num_key_heads", 16);
  d.n_v_heads = config.integer("linear_num_value_heads", 32);
  d.d_k = config.integer("linear_key_head_dim", 128);
  d.d_v = config.integer("linear_value_head_dim", 128);
  d.taps = config.integer("linear_conv_kernel_dim", 4);
  if (!config.boolean("attn_output_gate", true))
    fail(ErrorKind::kUnsupported, "{}: attn_output_gate false: expected true, or no such key", config.file());
  if (const auto types = config.find("layer_types")) {
    for (const JsonRef& type : types->elements()) {
      if (type.string() != "linear_attention" && type.string() != "full_attention")
        fail(ErrorKind::kUnsupported, "{}: {} '{}': expected linear_attention or full_attention", config.file(),
             type.path(), type.string());
      d.layers.push_back(type.string() == "linear_attention");
    }
    return;
  }
  const std::int64_t interval = config.integer("full_attention_interval", 4);
  if (interval < 1) config.at("full_attention_interval").wrong("1 or more");
  d.layers = states_by_layer(c.n_layers, interval);
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

namespace {

// A size that published folders may leave to the class's default; 0: they have it.
std::int64_t size_of(const JsonRef& config, const char* key, std::int64_t otherwise) {
  return otherwise == 0 ? config.at(key).integer() : config.integer(key, otherwise);
}

}  // namespace

std::optional<JsonRef> text_part(const JsonRef& config) {
  const std::string type = config.string("model_type", "");
  for (const Family& family : families())
    if (!type.empty() && family.hf_outer == type)
      return config.find("text_config") || family.hf_type != type + "_text" ? config.at("text_config") : config;
  return std::nullopt;
}

ModelConfig read_hf_config(const JsonRef& whole) {
  const JsonRef config = text_part(whole).value_or(whole);
  ModelConfig c;
  c.architecture = architecture_of(config);
  refuse_unknown(config, c.architecture);
  c.n_layers = config.at("num_hidden_layers").integer();
  c.hidden = config.at("hidden_size").integer();
  const Family& family = family_of(c.architecture);
  const bool rows = family.experts == ExpertNames::kStackedRows;  // no layer is dense
  c.ffn =
      config.at(rows && !config.find("intermediate_size") ? "moe_intermediate_size" : "intermediate_size").integer();
  c.n_heads = size_of(config, "num_attention_heads", family.hf.heads);
  c.n_kv_heads = config.integer("num_key_value_heads", family.hf.kv_heads == 0 ? c.n_heads : family.hf.kv_heads);
  c.vocab = size_of(config, "vocab_size", family.hf.vocab);
  c.head_dim = read_head_dim(config, c);
  c.max_context = config.integer("max_position_embeddings", family.context);
  read_window(config, c);
  c.rms_eps = config.number("rms_norm_eps", 1e-6);
  // A model that reads pictures has the flag at the top level, true by default. HfCheckpoint prefers a head of other
  // values where the folder has one.
  const bool pictures = text_part(whole).has_value();
  const bool tied = pictures || family.hf.tied_embeddings;
  c.tied_embeddings = family.delta ? config.boolean("tie_word_embeddings", whole.boolean("tie_word_embeddings", false))
                                   : whole.boolean("tie_word_embeddings", tied);
  set_family_fields(c);
  if (family.bias_key) c.qkv_bias = config.boolean("attention_bias", family.qkv_bias);
  set_usual_scales(c);
  if (family.multipliers) read_multipliers(config, c);
  if (c.architecture == Architecture::kGemma3) read_gemma3(config, c);
  const bool stacked = family.experts == ExpertNames::kStacked;
  if (family.experts == ExpertNames::kOneByOne || stacked || rows) c.experts = read_experts(config, family.experts);
  c.experts.normalise = c.experts.normalise || stacked || c.architecture == Architecture::kQwen35Moe;
  if (family.delta) read_delta(config, c);
  if (family.experts == ExpertNames::kFused) c.experts = read_gpt_oss_experts(config);
  c.unrotated = read_unrotated(config, c);
  if (c.architecture == Architecture::kMistral3) read_temperature(config, c);
  c.rope.pairs = family.hf_pairs;
  read_rope(config, c);
  check_config(c, config.file());
  return c;
}

}  // namespace mneme

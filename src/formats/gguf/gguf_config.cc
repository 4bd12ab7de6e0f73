#include <cmath>
#include <cstring>
#include <string>

#include "src/base/error.h"
#include "src/formats/config_check.h"
#include "src/formats/family.h"
#include "src/formats/gguf/gguf_metadata.h"
#include "src/formats/gguf/gguf_model.h"
#include "src/formats/wrong_file.h"

namespace mneme {
namespace {

// Keys with the architecture's prefix: "llama.block_count".
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(std::string(architecture) + ".") {}

  std::string name(std::string_view key) const { return prefix_ + std::string(key); }
  bool has(std::string_view key) const { return file_.find(name(key)) != nullptr; }
  std::int64_t integer(std::string_view key) const {
    const auto v = file_.integer(name(key));
    if (!v) missing(key);
    return *v;
  }
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const {
    return file_.integer(name(key)).value_or(otherwise);
  }
  double number(std::string_view key) const {
    const auto v = file_.number(name(key));
    if (!v) missing(key);
    return *v;
  }
  double number(std::string_view key, double otherwise) const { return file_.number(name(key)).value_or(otherwise); }
  std::optional<std::string_view> string(std::string_view key) const { return file_.string(name(key)); }
  // A size that some files give per layer; it must be the same for all layers.
  std::int64_t per_layer(std::string_view key) const {
    const GgufValue* v = file_.find(name(key));
    if (v == nullptr || v->type != GgufType::kArray) return integer(key);
    const auto all = file_.integers(name(key));
    if (all->empty()) missing(key);
    for (std::int64_t one : *all)
      if (one != all->front())
        fail(ErrorKind::kUnsupported, "{}: '{}' differs between layers ({} and {})", file_.file(), name(key),
             all->front(), one);
    return all->front();
  }

 private:
  [[noreturn]] void missing(std::string_view key) const {
    fail(ErrorKind::kFormat, "{}: metadata '{}' is missing", file_.file(), name(key));
  }
  const GgufFile& file_;
  std::string prefix_;
};

Architecture architecture_of(const GgufFile& file) {
  const auto name = file.string("general.architecture");
  if (!name) fail(ErrorKind::kFormat, "{}: metadata 'general.architecture' is missing", file.file());
  if (const Family* family = family_of_gguf(*name)) return family->architecture;
  if (is_embedding_model(*name)) refuse_embedding_model(file.file(), "architecture", *name);
  fail(ErrorKind::kUnsupported,
       "{}: architecture '{}' is not supported: expected one of {}. "
       "Take a model of one of these families, or ask for '{}' in an issue",
       file.file(), *name, gguf_families(), *name);
}

// Files in GGUF's container that are no models.
void refuse_other_kinds(const GgufFile& file) {
  const auto is_string = [&](std::string_view key, std::string_view value) {
    const GgufValue* v = file.find(key);
    return v != nullptr && v->type == GgufType::kString && file.string(key) == value;
  };
  if (file.find("adapter.type") != nullptr || is_string("general.type", "adapter"))
    fail(ErrorKind::kUnsupported,
         "{}: a LoRA adapter: expected a model. Adapters are not applied; merge it into its model and open the result",
         file.file());
  if (is_string("general.architecture", "clip") || is_string("general.type", "mmproj"))
    fail(ErrorKind::kUnsupported,
         "{}: a projector of images (mmproj): expected the GGUF file of the text model, which lies beside it. Images "
         "are "
         "not read",
         file.file());
  if (is_string("general.type", "imatrix"))
    fail(ErrorKind::kUnsupported, "{}: an importance matrix (imatrix): expected a model", file.file());
}

// How many times longer contexts become. Files of 2023 have `rope.scale_linear`; 0: neither key.
double read_factor(const Keys& keys, const GgufFile& file) {
  const double factor = keys.number("rope.scaling.factor", 0.0), linear = keys.number("rope.scale_linear", factor);
  if (keys.has("rope.scaling.factor") && linear != factor)
    fail(ErrorKind::kFormat, "{}: '{}' is {} and '{}' is {}: expected one value", file.file(),
         keys.name("rope.scaling.factor"), factor, keys.name("rope.scale_linear"), linear);
  return linear;
}

// Whether `mneme convert` wrote the file: no other program writes these keys, nor the sizes right behind the
// quantisation version.
bool is_converted(const Keys& keys, const GgufFile& file) {
  const std::string first_size = keys.name("block_count");
  std::string_view before;
  for (const GgufEntry& e : file.entries()) {
    if (e.key.starts_with("mneme.") || (e.key == first_size && before == "general.quantization_version")) return true;
    before = e.key;
  }
  return false;
}

// The scale of cos and sin; 0: the one that follows from the factor. `attn_factor` is a factor on top of that one,
// `yarn_attn_factor` the whole scale, as llama.cpp's converter writes config.json's attention_factor. Files that
// `mneme convert` wrote until 2026-11 have the factor on top there.
double read_amplitude(const Keys& keys, const GgufFile& file, double factor) {
  constexpr double kRounded = 1e-5;  // of f32
  const double derived = factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0;
  const auto read = [&](const char* key) {
    const double v = keys.number(key, 1.0);
    if (!(v > 0.0))
      fail(ErrorKind::kFormat, "{}: '{}': expected more than 0, found {}", file.file(), keys.name(key), v);
    return v;
  };
  const double on_top = read("rope.scaling.attn_factor") * derived;
  if (!keys.has("rope.scaling.yarn_attn_factor")) return on_top == derived && factor > 1.0 ? 0.0 : on_top;
  const double given = read("rope.scaling.yarn_attn_factor");
  const double whole = is_converted(keys, file) ? given * derived : given;
  if (keys.has("rope.scaling.attn_factor") && std::abs(whole - on_top) > kRounded * whole)
    fail(ErrorKind::kFormat, "{}: '{}' scales cos and sin by {}, '{}' by {}: expected one scale", file.file(),
         keys.name("rope.scaling.yarn_attn_factor"), whole, keys.name("rope.scaling.attn_factor"), on_top);
  return whole;
}

void read_yarn(const Keys& keys, const GgufFile& file, RopeConfig& r) {
  r.beta_fast = keys.number("rope.scaling.yarn_beta_fast", r.beta_fast);
  r.beta_slow = keys.number("rope.scaling.yarn_beta_slow", r.beta_slow);
  if (!(r.factor > 0.0))
    fail(ErrorKind::kFormat, "{}: '{}': expected more than 0, found {}", file.file(), keys.name("rope.scaling.factor"),
         r.factor);
  r.attention_factor = read_amplitude(keys, file, r.factor);
}

// A vector of f32; empty: the file has none.
std::vector<float> read_factors(const GgufFile& file, const char* name) {
  const GgufTensor* t = file.find_tensor(name);
  if (t == nullptr) return {};
  if (t->dtype != DType::kF32 || t->rank != 1)
    fail(ErrorKind::kUnsupported, "{}: tensor '{}': expected a vector in f32, found rank {} in {}", file.file(), name,
         t->rank, dtype_name(t->dtype));
  std::vector<float> values(t->dims[0]);
  std::memcpy(values.data(), t->data.data(), t->data.size());
  return values;
}

// Files have the two tensors; not all of them have the type beside.
void read_longrope(const Keys& keys, const GgufFile& file, RopeConfig& r) {
  r.scaling = RopeScaling::kLongRope;
  r.short_factors = read_factors(file, "rope_factors_short.weight");
  r.long_factors = read_factors(file, "rope_factors_long.weight");
  r.factor = 1.0;
  r.original_context = keys.integer("rope.scaling.original_context_length");
  r.attention_factor = keys.number("rope.scaling.attn_factor", 1.0);
}

void read_scaling(const Keys& keys, const GgufFile& file, RopeConfig& r) {
  const std::string_view type = keys.string("rope.scaling.type").value_or("");
  if (type == "longrope" || file.find_tensor("rope_factors_long.weight") != nullptr)
    return read_longrope(keys, file, r);
  r.factor = read_factor(keys, file);
  if (type.empty()) {
    r.scaling = r.factor != 0.0 && r.factor != 1.0 ? RopeScaling::kLinear : RopeScaling::kNone;
  } else if (type == "none") {
    r.scaling = RopeScaling::kNone;
  } else if (type == "linear") {
    r.scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    r.scaling = RopeScaling::kYarn;
  } else if (type == "dynamic") {
    r.scaling = RopeScaling::kDynamic;
  } else {
    fail(ErrorKind::kUnsupported,
         "{}: RoPE scaling '{}'; this build knows none, linear, yarn, dynamic, longrope, and llama3 as rope_freqs",
         file.file(), type);
  }
  if (r.scaling == RopeScaling::kNone) {
    r.factor = 1.0;
    return;
  }
  if (r.factor == 0.0)
    fail(ErrorKind::kFormat, "{}: metadata '{}' is missing", file.file(), keys.name("rope.scaling.factor"));
  if (r.scaling == RopeScaling::kLinear) return;
  r.original_context = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"));
  if (r.scaling == RopeScaling::kYarn) read_yarn(keys, file, r);
}

ExpertConfig read_experts(const Keys& keys, Architecture architecture, const GgufFile& file) {
  const ExpertNames names = family_of(architecture).experts;
  if (names == ExpertNames::kNone) {
    if (const std::int64_t n = keys.integer("expert_count", 0); n != 0)
      fail(ErrorKind::kUnsupported, "{}: a mixture of {} experts in a {} model; expected a dense one", file.file(), n,
           architecture_name(architecture));
    return {};
  }
  ExpertConfig e{.n = keys.integer("expert_count"),
                 .n_used = keys.integer("expert_used_count"),
                 .ffn = keys.integer("expert_feed_forward_length"),
                 .normalise = file.boolean(keys.name("expert_weights_norm")).value_or(true)};
  if (names == ExpertNames::kStackedRows) e.shared = keys.integer("expert_shared_feed_forward_length", e.ffn);
  if (names == ExpertNames::kFused) {
    e.normalise = e.biases = true;
    e.limit = file.number("mneme.expert_limit").value_or(kGptOssLimit);
  }
  return e;
}

// A list of which layers have a window, or one number, every so-manieth layer having none.
void read_pattern(const Keys& keys, const GgufFile& file, ModelConfig& c) {
  constexpr const char* kKey = "attention.sliding_window_pattern";
  const GgufValue* v = file.find(keys.name(kKey));
  if (v == nullptr) return;
  if (v->type == GgufType::kArray) {
    const auto listed = *file.integers(keys.name(kKey));
    return c.windowed.assign(listed.begin(), listed.end());
  }
  const std::int64_t period = keys.integer(kKey);
  if (period < 1)
    fail(ErrorKind::kFormat, "{}: '{}': expected 1 or more, found {}", file.file(), keys.name(kKey), period);
  c.windowed = windows_by_period(c.n_layers, static_cast<std::size_t>(period));
}

// Layers with windows and without RoPE: as the architecture has them, unless the file lists them.
void read_kinds(const Keys& keys, const GgufFile& file, ModelConfig& c) {
  const bool always = family_of(c.architecture).window == WindowRule::kByLayer;
  c.windowed = always || c.sliding_window > 0 ? windows_by_layer(c.architecture, c.n_layers) : std::vector<bool>();
  read_pattern(keys, file, c);
  const double theta = keys.number("rope.freq_base_swa", c.window_theta == 0.0 ? c.rope.theta : c.window_theta);
  if (c.window_theta != 0.0)
    c.window_theta = theta;
  else if (keys.has("rope.freq_base_swa") && theta != c.rope.theta)
    fail(ErrorKind::kUnsupported, "{}: '{}' is {}: expected {}, the base of the other layers", file.file(),
         keys.name("rope.freq_base_swa"), theta, c.rope.theta);
  c.unrotated = unrotated_by_layer(c.architecture, c.n_layers);
  if (const auto unrotated = file.integers("mneme.unrotated_layers"))
    c.unrotated.assign(unrotated->begin(), unrotated->end());
}

// Blocks that draft tokens (MTP) come behind the layers and count as blocks.
void leave_out_drafts(const Keys& keys, const GgufFile& file, ModelConfig& c) {
  const std::int64_t drafts = keys.integer("nextn_predict_layers", 0);
  if (drafts == 0) return;
  if (drafts < 0 || drafts > c.n_layers)
    fail(ErrorKind::kFormat, "{}: '{}': expected 0 to {}, the number of blocks, found {}", file.file(),
         keys.name("nextn_predict_layers"), c.n_layers, drafts);
  c.n_layers -= drafts;
  if (c.n_layers == 0 || file.find_tensor("blk.0.attn_norm.weight") == nullptr)
    fail(ErrorKind::kUnsupported,
         "{}: has only the blocks that draft tokens (MTP): expected the model's layers. Open the model's own file",
         file.file());
}

void read_delta(const Keys& keys, const GgufFile& file, ModelConfig& c) {
  DeltaConfig& d = c.delta;
  d.n_k_heads = keys.integer("ssm.group_count");
  d.n_v_heads = keys.integer("ssm.time_step_rank");
  d.d_k = keys.integer("ssm.state_size");
  const std::int64_t values = keys.integer("ssm.inner_size");
  if (d.n_v_heads < 1 || values % d.n_v_heads != 0)
    fail(ErrorKind::kFormat, "{}: '{}' {} is not a multiple of '{}' {}", file.file(), keys.name("ssm.inner_size"),
         values, keys.name("ssm.time_step_rank"), d.n_v_heads);
  d.d_v = values / d.n_v_heads;
  d.taps = keys.integer("ssm.conv_kernel");
  d.tiled = family_of(c.architecture).tiled_in_gguf;
  if (const auto listed = file.integers(keys.name("attention.recurrent_layers"))) {
    d.layers.assign(listed->begin(), listed->end());
    // Blocks that draft tokens are listed too.
    if (std::ssize(d.layers) > c.n_layers && c.n_layers > 0) d.layers.resize(static_cast<std::size_t>(c.n_layers));
    return;
  }
  const std::int64_t interval = keys.integer("full_attention_interval", 4);
  if (interval < 1)
    fail(ErrorKind::kFormat, "{}: '{}': expected 1 or more, found {}", file.file(),
         keys.name("full_attention_interval"), interval);
  d.layers = states_by_layer(c.n_layers, interval);
}

// cos and sin are divided by the scale that the multiplier gives; without the key by 1, as in llama.cpp.
void read_mistral3(const Keys& keys, ModelConfig& c) {
  c.temperature = keys.number("attention.temperature_scale", 0.0);
  if (c.temperature != 0.0) c.temperature_context = keys.integer("rope.scaling.original_context_length");
  if (c.rope.scaling != RopeScaling::kYarn || c.rope.factor <= 1.0 || keys.has("rope.scaling.yarn_attn_factor")) return;
  const double multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0);
  if (multiplier == 0.0) return;
  const double log = 0.1 * std::log(c.rope.factor);
  const double on_top = keys.number("rope.scaling.attn_factor", 1.0);
  c.rope.attention_factor = on_top * (log + 1.0) / (multiplier * log + 1.0);
}

void read_multipliers(const Keys& keys, ModelConfig& c) {
  for (const Multiplier& m : multipliers())
    if (const double v = keys.number(m.gguf, 0.0); v != 0.0) c.*m.member = v;
}

void read_rotary_dim(const Keys& keys, const GgufFile& file, ModelConfig& c) {
  const std::int64_t d = keys.integer("rope.dimension_count", c.head_dim);
  if (d != c.head_dim && !family_of(c.architecture).partial_rope)
    fail(ErrorKind::kUnsupported, "{}: RoPE over {} of {} dimensions in a {} model; this build rotates all of them",
         file.file(), d, c.head_dim, architecture_name(c.architecture));
  if (d == c.head_dim) return;
  if (d < 2)
    fail(ErrorKind::kFormat, "{}: '{}': expected 2 to {}, found {}", file.file(), keys.name("rope.dimension_count"),
         c.head_dim, d);
  c.rope.rotary_dim = d;
}

std::int64_t read_vocab(const GgufFile& file, const Keys& keys) {
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) fail(ErrorKind::kFormat, "{}: tensor 'token_embd.weight' is missing", file.file());
  if (embedding->rank != 2)
    fail(ErrorKind::kFormat, "{}: tensor 'token_embd.weight': expected 2 dimensions, found {}", file.file(),
         embedding->rank);
  const std::int64_t rows = embedding->dims[0];
  if (const std::int64_t said = keys.integer("vocab_size", rows); said != rows)
    fail(ErrorKind::kFormat, "{}: '{}' is {}, tensor 'token_embd.weight' has {} rows", file.file(),
         keys.name("vocab_size"), said, rows);
  return rows;
}

}  // namespace

ModelConfig read_gguf_config(const GgufFile& file) {
  refuse_other_kinds(file);
  if (file.tensor_count() == 0)
    fail(ErrorKind::kFormat, "{}: has no tensors: a vocabulary-only file, good for its tokenizer alone", file.file());
  ModelConfig c;
  c.architecture = architecture_of(file);
  const Keys keys(file, architecture_name(c.architecture));
  c.experts = read_experts(keys, c.architecture, file);
  c.name = std::string(file.string("general.name").value_or(""));
  c.n_layers = keys.integer("block_count");
  const bool delta = family_of(c.architecture).delta;
  if (delta) leave_out_drafts(keys, file, c);
  c.hidden = keys.integer("embedding_length");
  c.ffn = c.experts.n > 0 && !keys.has("feed_forward_length") ? c.experts.ffn : keys.per_layer("feed_forward_length");
  c.n_heads = keys.per_layer("attention.head_count");
  c.n_kv_heads = keys.has("attention.head_count_kv") ? keys.per_layer("attention.head_count_kv") : c.n_heads;
  if (keys.has("attention.key_length")) {
    c.head_dim = keys.integer("attention.key_length");
  } else {
    if (c.n_heads < 1 || c.hidden % c.n_heads != 0)
      fail(ErrorKind::kFormat, "{}: '{}' is missing and hidden size {} is not a multiple of {} heads", file.file(),
           keys.name("attention.key_length"), c.hidden, c.n_heads);
    c.head_dim = c.hidden / c.n_heads;
  }
  if (const std::int64_t v = keys.integer("attention.value_length", c.head_dim); v != c.head_dim)
    fail(ErrorKind::kUnsupported, "{}: keys of {} and values of {} elements; this build needs equal ones", file.file(),
         c.head_dim, v);
  c.max_context = keys.integer("context_length");
  c.sliding_window = keys.integer("attention.sliding_window", 0);
  c.rms_eps = keys.number("attention.layer_norm_rms_epsilon");
  c.vocab = read_vocab(file, keys);
  c.tied_embeddings = file.find_tensor("output.weight") == nullptr;
  set_family_fields(c);
  c.qkv_bias = c.qkv_bias || file.find_tensor("blk.0.attn_q.bias") != nullptr ||
               file.find_tensor("blk.0.attn_qkv.bias") != nullptr;
  set_usual_scales(c);
  if (family_of(c.architecture).multipliers) read_multipliers(keys, c);
  c.logit_cap = c.gate == Gate::kGelu ? keys.number("final_logit_softcapping", 0.0) : 0.0;
  c.rope.pairs = gguf_rope_pairs(c.architecture);
  c.rope.theta = keys.number("rope.freq_base", 10000.0);
  read_rotary_dim(keys, file, c);
  c.rope.truncate = file.boolean("mneme.rope_truncate").value_or(truncates_yarn(c.architecture));
  read_scaling(keys, file, c.rope);
  c.rope.freq_factors = read_factors(file, "rope_freqs.weight");
  if (c.architecture == Architecture::kMistral3) read_mistral3(keys, c);
  read_kinds(keys, file, c);
  if (delta) read_delta(keys, file, c);
  check_config(c, file.file());
  return c;
}

}  // namespace mneme

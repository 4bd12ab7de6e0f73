#include <cmath>
#include <cstring>
#include <string>

#include "src/base/error.h"
#include "src/formats/config_check.h"
#include "src/formats/gguf/gguf_metadata.h"
#include "src/formats/gguf/gguf_model.h"

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
  if (*name == "llama") return Architecture::kLlama;
  if (*name == "qwen2") return Architecture::kQwen2;
  if (*name == "qwen3") return Architecture::kQwen3;
  if (*name == "mistral3") return Architecture::kMistral3;
  if (*name == "qwen3moe") return Architecture::kQwen3Moe;
  if (*name == "gpt-oss") return Architecture::kGptOss;
  fail(ErrorKind::kUnsupported,
       "{}: architecture '{}'; this build runs llama, qwen2, qwen3, qwen3moe, mistral3, gpt-oss", file.file(), *name);
}

void read_scaling(const Keys& keys, const GgufFile& file, RopeConfig& r) {
  const std::string_view type = keys.string("rope.scaling.type").value_or("");
  r.factor = keys.number("rope.scaling.factor", 0.0);
  if (type.empty()) {
    // Files of 2023 have only the inverse factor, or the factor alone, and mean linear scaling.
    if (keys.has("rope.scale_linear")) r.factor = keys.number("rope.scale_linear");
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
         "{}: RoPE scaling '{}'; this build knows none, linear, yarn, dynamic, and llama3 as rope_freqs", file.file(),
         type);
  }
  if (r.scaling == RopeScaling::kNone) {
    r.factor = 1.0;
    return;
  }
  if (r.factor == 0.0)
    fail(ErrorKind::kFormat, "{}: metadata '{}' is missing", file.file(), keys.name("rope.scaling.factor"));
  if (r.scaling == RopeScaling::kLinear) return;
  r.original_context = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"));
  if (r.scaling != RopeScaling::kYarn) return;
  r.beta_fast = keys.number("rope.scaling.yarn_beta_fast", r.beta_fast);
  r.beta_slow = keys.number("rope.scaling.yarn_beta_slow", r.beta_slow);
  // GGUF stores a factor on top of the derived one, RopeConfig their product.
  const double extra = keys.number("rope.scaling.yarn_attn_factor", keys.number("rope.scaling.attn_factor", 1.0));
  if (extra != 1.0) r.attention_factor = extra * (r.factor > 1.0 ? 0.1 * std::log(r.factor) + 1.0 : 1.0);
}

void read_freq_factors(const GgufFile& file, RopeConfig& r) {
  const GgufTensor* t = file.find_tensor("rope_freqs.weight");
  if (t == nullptr) return;
  if (t->dtype != DType::kF32 || t->rank != 1)
    fail(ErrorKind::kUnsupported, "{}: tensor 'rope_freqs.weight': expected a vector in f32, found rank {} in {}",
         file.file(), t->rank, dtype_name(t->dtype));
  r.freq_factors.resize(t->dims[0]);
  std::memcpy(r.freq_factors.data(), t->data.data(), t->data.size());
}

ExpertConfig read_experts(const Keys& keys, Architecture architecture, const GgufFile& file) {
  if (architecture != Architecture::kQwen3Moe && architecture != Architecture::kGptOss) {
    if (const std::int64_t n = keys.integer("expert_count", 0); n != 0)
      fail(ErrorKind::kUnsupported, "{}: a mixture of {} experts in a {} model; expected a dense one", file.file(), n,
           architecture_name(architecture));
    return {};
  }
  ExpertConfig e{.n = keys.integer("expert_count"),
                 .n_used = keys.integer("expert_used_count"),
                 .ffn = keys.integer("expert_feed_forward_length"),
                 .normalise = file.boolean(keys.name("expert_weights_norm")).value_or(true)};
  if (architecture == Architecture::kGptOss) {
    e.normalise = e.biases = true;
    e.limit = file.number("mneme.expert_limit").value_or(kGptOssLimit);
  }
  return e;
}

// Every second layer has the window, from the first on, unless the file lists them. The ramp of YaRN is not truncated,
// which no key says: it follows from the model's own code.
void read_gpt_oss(const Keys& keys, const GgufFile& file, ModelConfig& c) {
  c.rope.truncate = false;
  c.windowed = alternating_windows(c.n_layers);
  const auto listed = file.integers(keys.name("attention.sliding_window_pattern"));
  if (listed) c.windowed.assign(listed->begin(), listed->end());
}

// cos and sin are not scaled, unless the file gives the divisor's multiplier.
void read_mistral3(const Keys& keys, ModelConfig& c) {
  c.temperature = keys.number("attention.temperature_scale", 0.0);
  if (c.temperature != 0.0) c.temperature_context = keys.integer("rope.scaling.original_context_length");
  if (c.rope.scaling != RopeScaling::kYarn || c.rope.factor <= 1.0) return;
  const double log = 0.1 * std::log(c.rope.factor), multiplier = keys.number("rope.scaling.yarn_log_multiplier", 1.0);
  c.rope.attention_factor = (log + 1.0) / (multiplier * log + 1.0);
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
  if (file.tensor_count() == 0)
    fail(ErrorKind::kFormat, "{}: has no tensors: a vocabulary-only file, good for its tokenizer alone", file.file());
  ModelConfig c;
  c.architecture = architecture_of(file);
  const Keys keys(file, architecture_name(c.architecture));
  c.experts = read_experts(keys, c.architecture, file);
  c.name = std::string(file.string("general.name").value_or(""));
  c.n_layers = keys.integer("block_count");
  c.hidden = keys.integer("embedding_length");
  c.ffn = keys.per_layer("feed_forward_length");
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
  const bool gpt_oss = c.architecture == Architecture::kGptOss;
  c.qkv_bias = c.architecture == Architecture::kQwen2 || gpt_oss || file.find_tensor("blk.0.attn_q.bias") != nullptr;
  c.qk_norm = c.architecture == Architecture::kQwen3 || c.architecture == Architecture::kQwen3Moe;
  c.rope.pairs = gguf_rope_pairs(c.architecture);
  c.rope.theta = keys.number("rope.freq_base", 10000.0);
  if (const std::int64_t d = keys.integer("rope.dimension_count", c.head_dim); d != c.head_dim)
    fail(ErrorKind::kUnsupported, "{}: RoPE over {} of {} dimensions; this build rotates all of them", file.file(), d,
         c.head_dim);
  read_scaling(keys, file, c.rope);
  read_freq_factors(file, c.rope);
  if (c.architecture == Architecture::kMistral3) read_mistral3(keys, c);
  if (gpt_oss) read_gpt_oss(keys, file, c);
  check_config(c, file.file());
  return c;
}

}  // namespace mneme

#include "src/formats/gguf/gguf_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"
#include "src/base/underlying.h"
#include "src/formats/config_check.h"
#include "src/formats/family.h"
#include "src/formats/tokenizer_check.h"

namespace mneme {
namespace {

std::uint32_t u32(std::int64_t v) {
  MNEME_CHECK(v >= 0 && v <= std::numeric_limits<std::uint32_t>::max(), "{} does not fit 32 bits", v);
  return static_cast<std::uint32_t>(v);
}

// Config files hold doubles, GGUF floats.
void put_f32(GgufWriter& w, std::string_view key, double value) {
  w.put(key, static_cast<float>(value));
}

void put_scaling(GgufWriter& w, const std::string& a, const RopeConfig& r) {
  const auto factor = [&](const char* type) {
    w.put(a + "rope.scaling.type", type);
    put_f32(w, a + "rope.scaling.factor", r.factor);
  };
  switch (r.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kLlama3:
      return;
    case RopeScaling::kLongRope:
      w.put(a + "rope.scaling.type", "longrope");
      put_f32(w, a + "rope.scaling.attn_factor", r.attention_factor);
      return w.put(a + "rope.scaling.original_context_length", u32(r.original_context));
    case RopeScaling::kLinear:
      return factor("linear");
    case RopeScaling::kDynamic:
    case RopeScaling::kYarn:
      break;
  }
  factor(r.scaling == RopeScaling::kYarn ? "yarn" : "dynamic");
  w.put(a + "rope.scaling.original_context_length", u32(r.original_context));
  if (r.scaling != RopeScaling::kYarn) return;
  put_f32(w, a + "rope.scaling.yarn_beta_fast", r.beta_fast);
  put_f32(w, a + "rope.scaling.yarn_beta_slow", r.beta_slow);
}

// A factor on top of the scale that follows from YaRN's factor, the one form that llama.cpp reads too.
void put_amplitude(GgufWriter& w, const std::string& a, const RopeConfig& r) {
  if (r.scaling != RopeScaling::kYarn || r.attention_factor == 0.0) return;
  const double derived = r.factor > 1.0 ? 0.1 * std::log(r.factor) + 1.0 : 1.0;
  put_f32(w, a + "rope.scaling.attn_factor", r.attention_factor / derived);
}

// Which layers have a window, where the architecture does not say the same.
void put_windows(GgufWriter& w, const std::string& a, const ModelConfig& c) {
  if (c.sliding_window > 0) w.put(a + "attention.sliding_window", u32(c.sliding_window));
  const std::vector<bool> usual = windows_by_layer(c.architecture, c.n_layers);
  if (c.windowed == usual || (c.windowed.empty() && c.sliding_window == 0)) return;
  const std::vector<std::int32_t> flags = c.windowed.empty()
                                              ? std::vector<std::int32_t>(c.n_layers, 1)
                                              : std::vector<std::int32_t>(c.windowed.begin(), c.windowed.end());
  w.put(a + "attention.sliding_window_pattern", std::span<const std::int32_t>(flags));
}

void put_unrotated(GgufWriter& w, const ModelConfig& c) {
  if (c.unrotated == unrotated_by_layer(c.architecture, c.n_layers)) return;
  const std::vector<std::int32_t> flags = c.unrotated.empty()
                                              ? std::vector<std::int32_t>(c.n_layers)
                                              : std::vector<std::int32_t>(c.unrotated.begin(), c.unrotated.end());
  w.put("mneme.unrotated_layers", std::span<const std::int32_t>(flags));  // llama.cpp goes by the architecture
}

void put_experts(GgufWriter& w, const std::string& a, const ExpertConfig& e) {
  w.put(a + "expert_count", u32(e.n));
  w.put(a + "expert_used_count", u32(e.n_used));
  w.put(a + "expert_feed_forward_length", u32(e.ffn));
  w.put(a + "expert_weights_norm", e.normalise);
  if (e.limit != 0.0) put_f32(w, "mneme.expert_limit", e.limit);  // which has no key of its own
  if (e.shared != 0) w.put(a + "expert_shared_feed_forward_length", u32(e.shared));
}

void put_delta(GgufWriter& w, const std::string& a, const ModelConfig& c) {
  const DeltaConfig& d = c.delta;
  w.put(a + "ssm.conv_kernel", u32(d.taps));
  w.put(a + "ssm.state_size", u32(d.d_k));
  w.put(a + "ssm.group_count", u32(d.n_k_heads));
  w.put(a + "ssm.time_step_rank", u32(d.n_v_heads));
  w.put(a + "ssm.inner_size", u32(d.value_width()));
  const auto first = std::ranges::find(d.layers, false);
  const std::int64_t interval = first - d.layers.begin() + 1;
  w.put(a + "full_attention_interval", u32(interval));
  if (d.layers != states_by_layer(c.n_layers, interval)) {
    const std::vector<std::int32_t> flags(d.layers.begin(), d.layers.end());
    w.put(a + "attention.recurrent_layers", std::span<const std::int32_t>(flags));
  }
  // Of the pairs that rotate, those by time, height and width: text has one position for all three. llama.cpp asks for it.
  const auto pairs = static_cast<std::int32_t>((c.rope.rotary_dim == 0 ? c.head_dim : c.rope.rotary_dim) / 2);
  const std::vector<std::int32_t> sections = {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
  w.put(a + "rope.dimension_sections", std::span<const std::int32_t>(sections));
}

// The scale of cos and sin as a multiplier of its divisor; 1 where they have none.
void put_mistral3(GgufWriter& w, const std::string& a, const ModelConfig& c) {
  if (c.temperature != 0.0) {
    put_f32(w, a + "attention.temperature_scale", c.temperature);
    const bool written = c.rope.scaling == RopeScaling::kYarn || c.rope.scaling == RopeScaling::kDynamic;
    if (!written) w.put(a + "rope.scaling.original_context_length", u32(c.temperature_context));
  }
  if (c.rope.scaling != RopeScaling::kYarn) return;
  if (c.rope.factor <= 1.0) return put_amplitude(w, a, c.rope);
  const double log = 0.1 * std::log(c.rope.factor);
  const double scale = c.rope.attention_factor == 0.0 ? log + 1.0 : c.rope.attention_factor;
  put_f32(w, a + "rope.scaling.yarn_log_multiplier", ((log + 1.0) / scale - 1.0) / log);
}

// Those that do not follow from the architecture.
void put_scales(GgufWriter& w, const std::string& a, const ModelConfig& c) {
  ModelConfig usual{.architecture = c.architecture, .n_layers = c.n_layers, .hidden = c.hidden, .n_heads = c.n_heads};
  set_usual_scales(usual);
  for (const Multiplier& m : multipliers()) {
    const double scale = c.*m.member;  // 0: attention's, by the size of heads
    if (scale != usual.*m.member) put_f32(w, a + m.gguf, scale == 0.0 ? 1.0 / std::sqrt(real(c.head_dim)) : scale);
  }
  if (c.logit_cap != 0.0) put_f32(w, a + "final_logit_softcapping", c.logit_cap);
}

struct KnownPre {
  std::string_view name;
  std::vector<std::string> patterns;
};

const std::array<KnownPre, 5>& known_pres() {
  static const std::string kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  static const std::array<KnownPre, 5> kPres = {{
      {"gpt-2", {kGpt2}},
      {"smollm", {R"(\p{N})", kGpt2}},
      {"llama-bpe",
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {"qwen35",
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
      {"qwen2",
       {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
  }};
  return kPres;
}

std::int32_t type_number(TokenType type) {
  // llama.cpp's converter calls padding unused, too.
  return underlying(type == TokenType::kAbsent ? TokenType::kUnused : type) + 1;
}

std::vector<std::string> joined_merges(const TokenizerData& t) {
  std::vector<std::string> merges;
  merges.reserve(t.merges.size());
  for (const auto& [left, right] : t.merges) merges.push_back(left + " " + right);
  return merges;
}

// What tokenizer.json says and GGUF has no key for.
void put_space_rules(GgufWriter& w, const TokenizerData& t) {
  if (t.space_rule == SpaceRule::kLlamaCpp) return;
  w.put("mneme.tokenizer.space_rule", space_rule_name(t.space_rule));
  w.put("mneme.tokenizer.split_at_marks", t.split_at_marks);
  w.put("mneme.tokenizer.fuse_unknown", t.fuse_unknown);
  if (!t.merges.empty()) w.put("mneme.tokenizer.merges", std::span<const std::string>(joined_merges(t)));
}

void put_added_flags(GgufWriter& w, const TokenizerData& t) {
  if (t.added_flags.empty()) return;
  std::vector<std::int32_t> pairs;  // id, flags, id, flags, ...
  for (const AddedFlags& a : t.added_flags) pairs.insert(pairs.end(), {a.id, std::int32_t{a.flags}});
  w.put("mneme.tokenizer.added_flags", std::span<const std::int32_t>(pairs));
}

void put_byte_bpe(GgufWriter& w, const TokenizerData& t) {
  std::string_view known = t.pre_patterns.empty() ? std::string_view(t.pre) : known_pre_tokenizer(t.pre_patterns);
  if (!t.pre_patterns.empty() && known == "llama-bpe" && !t.ignore_merges)
    known = "smaug-bpe";  // the same pattern; llama-bpe keeps whole pieces
  w.put("tokenizer.ggml.pre", known.empty() ? std::string_view("default") : known);
  if (known.empty()) w.put("mneme.tokenizer.pre_patterns", std::span<const std::string>(t.pre_patterns));
  w.put("tokenizer.ggml.merges", std::span<const std::string>(joined_merges(t)));
  w.put("mneme.tokenizer.ignore_merges", t.ignore_merges);
  w.put("tokenizer.ggml.add_space_prefix", t.pre_add_prefix_space);
}

}  // namespace

std::string_view gguf_architecture(Architecture a) {
  return family_of(a).gguf;
}

RopePairs gguf_rope_pairs(Architecture a) {
  return family_of(a).gguf_pairs;
}

std::string_view known_pre_tokenizer(const std::vector<std::string>& patterns) {
  for (const KnownPre& pre : known_pres())
    if (pre.patterns == patterns) return pre.name;
  return {};
}

std::vector<float> gguf_freq_factors(const ModelConfig& config) {
  const RopeConfig& r = config.rope;
  if (r.scaling != RopeScaling::kLlama3) return r.freq_factors;
  std::vector<float> out(config.head_dim / 2);
  for (std::int32_t i = 0; i < size32(out); ++i) {
    const double frequency = std::pow(r.theta, ratio(-2 * i, config.head_dim));
    const double waves = real(r.original_context) * frequency / (2.0 * std::numbers::pi);
    double factor = 1.0;
    if (waves < r.low_freq_factor) {
      factor = r.factor;
    } else if (waves <= r.high_freq_factor) {
      const double smooth = (waves - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
      factor = 1.0 / ((1.0 - smooth) / r.factor + smooth);
    }
    out[i] = static_cast<float>(factor);
  }
  return out;
}

void put_config(GgufWriter& w, const ModelConfig& c, DType weights) {
  const std::string_view architecture = gguf_architecture(c.architecture);
  const std::string a = std::string(architecture) + ".";
  w.put("general.architecture", architecture);
  if (!c.name.empty()) w.put("general.name", std::string_view(c.name));
  w.put("general.file_type", gguf_file_type(weights));
  w.put("general.quantization_version", std::uint32_t{2});
  w.put(a + "block_count", u32(c.n_layers));
  w.put(a + "context_length", u32(c.max_context));
  w.put(a + "embedding_length", u32(c.hidden));
  w.put(a + "feed_forward_length", u32(c.ffn));
  w.put(a + "attention.head_count", u32(c.n_heads));
  w.put(a + "attention.head_count_kv", u32(c.n_kv_heads));
  w.put(a + "attention.key_length", u32(c.head_dim));
  w.put(a + "attention.value_length", u32(c.head_dim));
  put_f32(w, a + "attention.layer_norm_rms_epsilon", c.rms_eps);
  put_windows(w, a, c);
  put_unrotated(w, c);
  put_f32(w, a + "rope.freq_base", c.rope.theta);
  if (c.window_theta != 0.0) put_f32(w, a + "rope.freq_base_swa", c.window_theta);
  w.put(a + "rope.dimension_count", u32(c.rope.rotary_dim == 0 ? c.head_dim : c.rope.rotary_dim));
  w.put(a + "vocab_size", u32(c.vocab));
  put_scaling(w, a, c.rope);
  if (c.experts.n > 0) put_experts(w, a, c.experts);
  if (c.delta.n_k_heads > 0) put_delta(w, a, c);
  put_scales(w, a, c);
  if (c.rope.truncate != truncates_yarn(c.architecture)) w.put("mneme.rope_truncate", c.rope.truncate);
  if (c.architecture == Architecture::kMistral3)
    put_mistral3(w, a, c);
  else
    put_amplitude(w, a, c.rope);
}

void put_tokenizer(GgufWriter& w, const TokenizerData& t) {
  const bool bytes = t.kind == TokenizerKind::kByteBpe;
  w.put("tokenizer.ggml.model", bytes ? "gpt2" : "llama");
  w.put("tokenizer.ggml.tokens", std::span<const std::string>(t.tokens));
  std::vector<std::int32_t> types;
  for (const TokenType type : t.types) types.push_back(type_number(type));
  w.put("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
  if (bytes) {
    put_byte_bpe(w, t);
  } else {
    w.put("tokenizer.ggml.scores", std::span<const float>(t.scores));
    w.put("tokenizer.ggml.add_space_prefix", t.add_space_prefix);
    put_space_rules(w, t);
  }
  put_added_flags(w, t);
  const auto id = [&](const char* key, std::optional<std::int32_t> value) {
    if (value) w.put(key, u32(*value));
  };
  id("tokenizer.ggml.bos_token_id", t.bos);
  id("tokenizer.ggml.eos_token_id", t.eos);
  id("tokenizer.ggml.eot_token_id", t.eot);
  id("tokenizer.ggml.unknown_token_id", t.unk);
  id("tokenizer.ggml.padding_token_id", t.pad);
  if (!t.eog.empty()) w.put("mneme.tokenizer.eog_token_ids", std::span<const std::int32_t>(t.eog));
  w.put("tokenizer.ggml.add_bos_token", t.add_bos);
  w.put("tokenizer.ggml.add_eos_token", t.add_eos);
  if (!t.chat_template.empty()) w.put("tokenizer.chat_template", std::string_view(t.chat_template));
  std::vector<std::string> names;
  for (const auto& [name, source] : t.named_templates) {
    names.push_back(name);
    w.put("tokenizer.chat_template." + name, std::string_view(source));
  }
  if (!names.empty()) w.put("tokenizer.chat_templates", std::span<const std::string>(names));
}

}  // namespace mneme

#include "src/formats/model_config.h"

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/formats/config_check.h"
#include "src/formats/family.h"

namespace mneme {

std::string_view architecture_name(Architecture a) {
  return family_of(a).name;
}

namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;  // a u32 in GGUF files

void check_size(std::string_view file, std::string_view what, std::int64_t found, std::int64_t least,
                std::int64_t most) {
  if (found < least || found > most)
    fail(ErrorKind::kFormat, "{}: {}: expected {} to {}, found {}", file, what, least, most, found);
}

void check_number(std::string_view file, std::string_view what, double found, double least, double most) {
  if (!(found >= least && found <= most))  // NaN fails too
    fail(ErrorKind::kFormat, "{}: {}: expected {} to {}, found {}", file, what, least, most, found);
}

void check_longrope(const RopeConfig& r, const ModelConfig& c, std::string_view file) {
  check_size(file, "RoPE scaling's original context", r.original_context, 1, kMaxTokens);
  check_number(file, "RoPE attention factor", r.attention_factor, 0.0, 1e3);
  const std::int64_t pairs = (r.rotary_dim == 0 ? c.head_dim : r.rotary_dim) / 2;
  for (const std::vector<float>* factors : {&r.short_factors, &r.long_factors}) {
    if (std::ssize(*factors) != pairs)
      fail(ErrorKind::kFormat, "{}: factors of longrope: expected {} (half of the values that rotate), found {}", file,
           pairs, factors->size());
    for (const float f : *factors) check_number(file, "factor of longrope", f, 1e-6, 1e6);
  }
}

void check_rope(const RopeConfig& r, const ModelConfig& c, std::string_view file) {
  check_number(file, "RoPE base (theta)", r.theta, 1.0, 1e12);
  if (!r.freq_factors.empty() && std::ssize(r.freq_factors) != c.head_dim / 2)
    fail(ErrorKind::kFormat, "{}: RoPE frequency factors: expected {} (half of head_dim), found {}", file,
         c.head_dim / 2, r.freq_factors.size());
  for (float f : r.freq_factors) check_number(file, "RoPE frequency factor", f, 1e-6, 1e6);
  if (r.rotary_dim != 0) check_size(file, "values of a head under RoPE", r.rotary_dim, 2, c.head_dim);
  if (r.rotary_dim % 2 != 0)
    fail(ErrorKind::kFormat, "{}: values of a head under RoPE: expected an even number, found {}", file, r.rotary_dim);
  if (r.scaling == RopeScaling::kNone) return;
  if (r.scaling == RopeScaling::kLongRope) return check_longrope(r, c, file);
  check_number(file, "RoPE scaling factor", r.factor, 1e-3, 1e6);
  if (r.scaling == RopeScaling::kLinear) return;
  check_size(file, "RoPE scaling's original context", r.original_context, 1, kMaxTokens);
  if (r.scaling == RopeScaling::kDynamic && r.rotary_dim != 0)
    check_size(file, "values of a head under dynamic RoPE", r.rotary_dim, 4, c.head_dim);
  if (r.scaling == RopeScaling::kLlama3) {
    check_number(file, "RoPE low_freq_factor", r.low_freq_factor, 1e-6, 1e6);
    check_number(file, "RoPE high_freq_factor", r.high_freq_factor, 1e-6, 1e6);
    if (!(r.low_freq_factor < r.high_freq_factor))
      fail(ErrorKind::kFormat, "{}: RoPE low_freq_factor {} must be below high_freq_factor {}", file, r.low_freq_factor,
           r.high_freq_factor);
  } else if (r.scaling == RopeScaling::kYarn) {
    check_number(file, "RoPE beta_fast", r.beta_fast, 1e-6, 1e6);
    check_number(file, "RoPE beta_slow", r.beta_slow, 1e-6, 1e6);
    check_number(file, "RoPE attention factor", r.attention_factor, 0.0, 1e3);
    if (!(r.theta > 1.0))
      fail(ErrorKind::kFormat, "{}: RoPE base (theta): expected more than 1 with yarn, found {}", file, r.theta);
    if (!(r.beta_slow < r.beta_fast))
      fail(ErrorKind::kFormat, "{}: RoPE beta_slow {} must be below beta_fast {}", file, r.beta_slow, r.beta_fast);
  }
}

void check_experts(const ExpertConfig& e, Architecture architecture, std::string_view file) {
  const ExpertNames names = family_of(architecture).experts;
  if (e.n == 0 && names == ExpertNames::kNone) return;
  check_size(file, "number of experts", e.n, 1, 1 << 12);
  check_size(file, "experts used", e.n_used, 1, e.n);
  check_size(file, "feed-forward size of an expert", e.ffn, 1, 1 << 22);
  check_number(file, "limit of an expert's gate", e.limit, names == ExpertNames::kFused ? 1e-6 : 0.0, 1e6);
}

void check_delta(const ModelConfig& c, std::string_view file) {
  const DeltaConfig& d = c.delta;
  if (d.n_k_heads == 0 && d.layers.empty()) return;
  check_size(file, "key heads of linear attention", d.n_k_heads, 1, 1 << 10);
  check_size(file, "value heads of linear attention", d.n_v_heads, 1, 1 << 10);
  check_size(file, "key size of linear attention", d.d_k, 1, 1 << 10);
  check_size(file, "value size of linear attention", d.d_v, 1, 1 << 10);
  check_size(file, "taps of linear attention's convolution", d.taps, 2, 16);
  if (d.n_v_heads % d.n_k_heads != 0)
    fail(ErrorKind::kFormat, "{}: {} value heads of linear attention are not a multiple of {} key heads", file,
         d.n_v_heads, d.n_k_heads);
  if (std::ssize(d.layers) != c.n_layers)
    fail(ErrorKind::kFormat, "{}: kinds of layers: expected {}, found {}", file, c.n_layers, d.layers.size());
  if (c.n_kv_layers() == 0)
    fail(ErrorKind::kUnsupported, "{}: all {} layers have linear attention: expected one with full attention at least",
         file, c.n_layers);
}

// `last` in layers period - 1, 2 period - 1, ..., !last in the others; empty without a period.
std::vector<bool> by_period(std::int64_t n_layers, std::size_t period, bool last) {
  if (period == 0) return {};
  constexpr std::int64_t kMost = 4096;  // check_config() refuses more
  std::vector<bool> flags(std::clamp<std::int64_t>(n_layers, 0, kMost), !last);
  for (std::size_t i = period - 1; i < flags.size(); i += period) flags[i] = last;
  return flags;
}

}  // namespace

std::vector<bool> windows_by_layer(Architecture architecture, std::int64_t n_layers) {
  return by_period(n_layers, family_of(architecture).full_period, false);
}

std::vector<bool> windows_by_period(std::int64_t n_layers, std::size_t full_period) {
  return by_period(n_layers, full_period, false);
}

// Source  llama.cpp b11434: the largest gemma3 has another scale of attention, and no key for it.
void set_usual_scales(ModelConfig& c) {
  if (!family_of(c.architecture).scales_embeddings) return;
  constexpr std::int64_t kLayersOf27B = 62;
  c.embedding_scale = std::sqrt(real(std::max<std::int64_t>(c.hidden, 1)));
  if (c.architecture == Architecture::kGemma3 && c.n_layers == kLayersOf27B && c.n_heads > 0)
    c.attention_scale = 1.0 / std::sqrt(real(std::max<std::int64_t>(c.hidden / c.n_heads, 1)));
}

std::vector<bool> unrotated_by_layer(Architecture architecture, std::int64_t n_layers) {
  return by_period(n_layers, family_of(architecture).unrotated_period, true);
}

std::vector<bool> states_by_layer(std::int64_t n_layers, std::int64_t interval) {
  return by_period(n_layers, static_cast<std::size_t>(interval), false);
}

bool truncates_yarn(Architecture architecture) {
  return family_of(architecture).experts != ExpertNames::kFused;
}

void check_config(const ModelConfig& c, std::string_view file) {
  // The upper limits are far above any model of these families; they keep the product of two sizes within 64 bits.
  check_size(file, "number of layers", c.n_layers, 1, 4096);
  check_size(file, "hidden size", c.hidden, 1, 1 << 20);
  check_size(file, "feed-forward size", c.ffn, 1, 1 << 22);
  check_size(file, "number of query heads", c.n_heads, 1, 1 << 14);
  check_size(file, "number of KV heads", c.n_kv_heads, 1, 1 << 14);
  check_size(file, "head_dim", c.head_dim, 2, 1 << 13);
  check_size(file, "vocabulary", c.vocab, 1, 1 << 24);
  check_size(file, "context length", c.max_context, 1, kMaxTokens);
  const bool windows = std::find(c.windowed.begin(), c.windowed.end(), true) != c.windowed.end();
  check_size(file, "sliding window", c.sliding_window, windows ? 1 : 0, kMaxTokens);
  if (!c.windowed.empty() && std::ssize(c.windowed) != c.n_layers)
    fail(ErrorKind::kFormat, "{}: kinds of layers: expected {}, found {}", file, c.n_layers, c.windowed.size());
  if (c.n_heads % c.n_kv_heads != 0)
    fail(ErrorKind::kFormat, "{}: {} query heads are not a multiple of {} KV heads", file, c.n_heads, c.n_kv_heads);
  if (c.head_dim % 2 != 0)
    fail(ErrorKind::kFormat, "{}: head_dim: expected an even number, found {}", file, c.head_dim);
  check_number(file, "RMSNorm epsilon", c.rms_eps, 1e-12, 1.0);
  check_rope(c.rope, c, file);
  check_experts(c.experts, c.architecture, file);
  check_size(file, "feed-forward size of the shared expert", c.experts.shared, 0, 1 << 22);
  check_delta(c, file);
  if (c.window_theta != 0.0) check_number(file, "RoPE base (theta) of layers with a window", c.window_theta, 1.0, 1e12);
  if (c.logit_cap != 0.0) check_number(file, "cap of logits", c.logit_cap, 1e-3, 1e6);
  if (!c.unrotated.empty() && std::ssize(c.unrotated) != c.n_layers)
    fail(ErrorKind::kFormat, "{}: layers without RoPE: expected {}, found {}", file, c.n_layers, c.unrotated.size());
  check_number(file, "scale of embeddings", c.embedding_scale, 1e-3, 1e4);
  check_number(file, "scale of what a block adds", c.residual_scale, 1e-3, 1e3);
  check_number(file, "scale of attention's logits", c.attention_scale, 0.0, 1e3);
  check_number(file, "divisor of logits", c.logit_divisor, 1e-3, 1e4);
  if (c.temperature == 0.0) return;
  check_number(file, "scale of the attention's temperature", c.temperature, 0.0, 1e3);
  check_size(file, "original context of the attention's temperature", c.temperature_context, 1, kMaxTokens);
}

}  // namespace mneme

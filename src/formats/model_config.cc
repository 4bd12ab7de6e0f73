#include "src/formats/model_config.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/underlying.h"
#include "src/formats/config_check.h"

namespace mneme {

std::string_view architecture_name(Architecture a) {
  switch (a) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kMistral:
      return "mistral";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kMistral3:
      return "mistral3";
    case Architecture::kQwen3Moe:
      return "qwen3moe";
    case Architecture::kGptOss:
      return "gpt-oss";
  }
  MNEME_CHECK(false, "architecture {} does not exist", underlying(a));
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

void check_rope(const RopeConfig& r, const ModelConfig& c, std::string_view file) {
  check_number(file, "RoPE base (theta)", r.theta, 1.0, 1e12);
  if (!r.freq_factors.empty() && std::ssize(r.freq_factors) != c.head_dim / 2)
    fail(ErrorKind::kFormat, "{}: RoPE frequency factors: expected {} (half of head_dim), found {}", file,
         c.head_dim / 2, r.freq_factors.size());
  for (float f : r.freq_factors) check_number(file, "RoPE frequency factor", f, 1e-6, 1e6);
  if (r.scaling == RopeScaling::kNone) return;
  check_number(file, "RoPE scaling factor", r.factor, 1e-3, 1e6);
  if (r.scaling == RopeScaling::kLinear) return;
  check_size(file, "RoPE scaling's original context", r.original_context, 1, kMaxTokens);
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
  const bool gpt_oss = architecture == Architecture::kGptOss;
  if (e.n == 0 && !gpt_oss && architecture != Architecture::kQwen3Moe) return;
  check_size(file, "number of experts", e.n, 1, 1 << 12);
  check_size(file, "experts used", e.n_used, 1, e.n);
  check_size(file, "feed-forward size of an expert", e.ffn, 1, 1 << 22);
  check_number(file, "limit of an expert's gate", e.limit, gpt_oss ? 1e-6 : 0.0, 1e6);
}

}  // namespace

std::vector<bool> alternating_windows(std::int64_t n_layers) {
  constexpr std::int64_t kMost = 4096;  // check_config() refuses more
  std::vector<bool> windowed(std::clamp<std::int64_t>(n_layers, 0, kMost));
  for (std::size_t i = 0; i < windowed.size(); i += 2) windowed[i] = true;
  return windowed;
}

bool truncates_yarn(Architecture architecture) {
  return architecture != Architecture::kGptOss;
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
  if (c.temperature == 0.0) return;
  check_number(file, "scale of the attention's temperature", c.temperature, 0.0, 1e3);
  check_size(file, "original context of the attention's temperature", c.temperature_context, 1, kMaxTokens);
}

}  // namespace mneme

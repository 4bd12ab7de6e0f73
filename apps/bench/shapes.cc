#include "apps/bench/shapes.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/formats/config_check.h"
#include "src/formats/family.h"

namespace mneme {
namespace {

struct NamedShape {
  const char* name;
  const char* family;
  std::int64_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab, context;
  double theta, eps;
  bool tied;
  double llama3_factor;  // of RoPE's scaling; 0: none
};

// clang-format off
constexpr const char *L = "llama", *M = "mistral", *Q2 = "qwen2", *Q3 = "qwen3", *QM = "qwen3_moe", *GO = "gpt_oss";
constexpr NamedShape kRows[] = {
    //                       layers hidden   ffn heads kv  D   vocab context     theta    eps   tied scaling
    {"tiny-16l",       L,      16,   256,   768,   8,  2,  32,   4096, 131072,  500000, 1e-5,  true, 0},
    {"qwen2.5-0.5b",   Q2,     24,   896,  4864,  14,  2,  64, 151936,  32768, 1000000, 1e-6,  true, 0},
    {"qwen3-0.6b",     Q3,     28,  1024,  3072,  16,  8, 128, 151936,  40960, 1000000, 1e-6,  true, 0},
    {"llama-3.2-1b",   L,      16,  2048,  8192,  32,  8,  64, 128256, 131072,  500000, 1e-5,  true, 32},
    {"qwen2.5-1.5b",   Q2,     28,  1536,  8960,  12,  2, 128, 151936, 131072, 1000000, 1e-6,  true, 0},
    {"llama-3.2-3b",   L,      28,  3072,  8192,  24,  8, 128, 128256, 131072,  500000, 1e-5,  true, 32},
    {"llama-2-7b",     L,      32,  4096, 11008,  32, 32, 128,  32000,   4096,   10000, 1e-5, false, 0},
    {"mistral-7b-v0.3",M,      32,  4096, 14336,  32,  8, 128,  32768,  32768, 1000000, 1e-5, false, 0},
    {"qwen2.5-7b",     Q2,     28,  3584, 18944,  28,  4, 128, 152064, 131072, 1000000, 1e-6, false, 0},
    {"llama-3.1-8b",   L,      32,  4096, 14336,  32,  8, 128, 128256, 131072,  500000, 1e-5, false, 8},
    {"llama-3.1-70b",  L,      80,  8192, 28672,  64,  8, 128, 128256, 131072,  500000, 1e-5, false, 8},
    {"qwen3-8b",       Q3,     36,  4096, 12288,  32,  8, 128, 151936,  40960, 1000000, 1e-6, false, 0},
    {"qwen3-30b-a3b",  QM,     48,  2048,  6144,  32,  4, 128, 151936, 262144,10000000, 1e-6, false, 0},
    {"gpt-oss-20b",    GO,     24,  2880,  2880,  64,  8,  64, 201088, 131072,  150000, 1e-5, false, 0},
};
// clang-format on

void add_gpt_oss(ModelConfig& c) {
  c.experts = {.n = 32, .n_used = 4, .ffn = c.ffn, .normalise = true, .biases = true, .limit = kGptOssLimit};
  c.sliding_window = 128;
  c.windowed = windows_by_layer(c.architecture, c.n_layers);
  c.rope.scaling = RopeScaling::kYarn;
  c.rope.factor = 32.0;
  c.rope.original_context = 4096;
  c.rope.truncate = false;
}

ModelConfig config_of(const NamedShape& r) {
  ModelConfig c;
  c.architecture = family_of_hf(r.family)->architecture;
  set_family_fields(c);
  c.name = r.name;
  c.n_layers = r.layers;
  c.hidden = r.hidden;
  c.ffn = r.ffn;
  c.n_heads = r.heads;
  c.n_kv_heads = r.kv_heads;
  c.head_dim = r.head_dim;
  c.vocab = r.vocab;
  c.max_context = r.context;
  c.rms_eps = r.eps;
  c.tied_embeddings = r.tied;
  c.rope.theta = r.theta;
  if (r.llama3_factor > 0) {
    c.rope.scaling = RopeScaling::kLlama3;
    c.rope.factor = r.llama3_factor;
    c.rope.original_context = 8192;
  }
  if (r.family == QM) c.experts = {.n = 128, .n_used = 8, .ffn = 768};
  if (r.family == GO) add_gpt_oss(c);
  return c;
}

}  // namespace

std::span<const ModelConfig> bench_shapes() {
  static const std::vector<ModelConfig> shapes = [] {
    std::vector<ModelConfig> all;
    for (const NamedShape& row : kRows) all.push_back(config_of(row));
    return all;
  }();
  return shapes;
}

const ModelConfig& bench_shape(std::string_view name) {
  std::vector<std::string_view> known;
  for (const ModelConfig& c : bench_shapes()) {
    if (c.name == name) return c;
    known.push_back(c.name);
  }
  fail(ErrorKind::kOption, "there is no shape \"{}\"; there are {}", name, fmt::join(known, ", "));
}

}  // namespace mneme

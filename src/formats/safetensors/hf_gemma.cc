#include "src/formats/safetensors/hf_gemma.h"

#include <cmath>
#include <string>

#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/formats/family.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

void refuse_other_arithmetic(const JsonRef& config) {
  constexpr const char* kTanh = "gelu_pytorch_tanh";
  if (const std::string act = config.string("hidden_activation", kTanh); act != kTanh)
    fail(ErrorKind::kUnsupported, "{}: hidden_activation '{}'; expected {}", config.file(), act, kTanh);
  if (const auto cap = config.find("attn_logit_softcapping"))
    fail(ErrorKind::kUnsupported, "{}: attn_logit_softcapping {}: a cap of attention's logits; expected none",
         config.file(), cap->number());
  if (config.boolean("use_bidirectional_attention", false))
    fail(ErrorKind::kUnsupported, "{}: use_bidirectional_attention: an embedding model; expected one that writes text",
         config.file());
}

}  // namespace

// Source  transformers 5.24, Gemma3TextConfig
void read_gemma3(const JsonRef& config, ModelConfig& c) {
  refuse_other_arithmetic(config);
  const Family& family = family_of(c.architecture);
  const std::int64_t scalar = config.integer("query_pre_attn_scalar", family.hf.query_scalar);
  if (scalar < 1) config.at("query_pre_attn_scalar").wrong("1 or more");
  c.attention_scale = scalar == c.head_dim ? 0.0 : 1.0 / std::sqrt(real(scalar));
  c.logit_cap = config.number("final_logit_softcapping", 0.0);
  c.window_theta = config.number("rope_local_base_freq", family.window_theta);
  const auto by_kind = config.find("rope_parameters");
  if (config.find("rope_scaling") && by_kind && by_kind->find("full_attention"))
    fail(ErrorKind::kUnsupported, "{}: rope_scaling beside rope_parameters.full_attention: expected one of them",
         config.file());
}

double rounded_to(DType dtype, double value) {
  const auto single = static_cast<float>(value);
  return dtype == DType::kBF16  ? static_cast<float>(bf16(single))
         : dtype == DType::kF16 ? static_cast<float>(f16(single))
                                : single;
}

}  // namespace mneme

// quantization_config of a config.json.
#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"
#include "src/formats/safetensors/quantised.h"
#include "src/ops/gemm/quant.h"

namespace mneme {
namespace {

constexpr std::int64_t kLargestBlock = 1 << 16;

[[noreturn]] void refuse(const JsonRef& at, std::string_view expected, std::string_view found) {
  fail(ErrorKind::kUnsupported, "{}: {}: expected {}, found {}", at.file(), at.path(), expected, found);
}

void expect_string(const JsonRef& q, std::string_view key, std::string_view expected, std::string_view otherwise) {
  std::string found = q.string(key, otherwise);
  for (char& c : found)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (found != expected) refuse(*q.find(key), expected, found);
}

void expect_four_bits(const JsonRef& q, std::string_view key) {
  if (const std::int64_t bits = q.at(key).integer(); bits != 4) refuse(q.at(key), "4", std::to_string(bits));
}

// "meta": {"quantizer": ["gptqmodel:1.4.0"]}, or one string, "gptqmodel" being one of several programs that took part.
bool is_of_gptqmodel(const JsonRef& q) {
  const auto meta = q.find("meta");
  const auto quantizer = meta && meta->is_object() ? meta->find("quantizer") : std::nullopt;
  if (!quantizer) return false;
  const auto names_it = [](const Json& v) { return v.is_string() && v.get<std::string>().starts_with("gptqmodel"); };
  const Json& v = quantizer->value();
  return names_it(v) || (v.is_array() && std::any_of(v.begin(), v.end(), names_it));
}

std::array<std::int64_t, 2> read_block(const JsonRef& block) {
  const auto sizes = block.elements();
  if (sizes.size() != 2) block.wrong("two sizes");
  const std::array<std::int64_t, 2> out{sizes[0].integer(), sizes[1].integer()};
  for (const std::int64_t size : out)
    if (size < 1 || size > kLargestBlock) block.wrong(fmt::format("sizes of 1 to {}", kLargestBlock));
  return out;
}

// Weights of one group of compressed-tensors.
void read_group(const JsonRef& group, QuantConfig& out) {
  const JsonRef weights = group.at("weights");
  const std::string type = weights.string("type", "int");
  const std::int64_t bits = weights.at("num_bits").integer();
  const bool nvfp4 = type == "float" && bits == 4 && weights.integer("group_size", 16) == kNvfp4Group;
  const bool known = (type == "int" && (bits == 4 || bits == 8)) || (type == "float" && bits == 8) || nvfp4;
  if (!known)
    refuse(weights, "int of 4 or 8 bits, float of 8, or float of 4 in groups of 16",
           fmt::format("{} of {} bits", type, bits));
  if (const auto block = weights.find("block_structure"); block && weights.string("strategy", "") == "block")
    out.block = read_block(*block);
}

void read_compressed_tensors(const JsonRef& q, QuantConfig& out) {
  const auto expect_format = [](const JsonRef& at) {
    const std::string format = at.string("format", "dense");
    for (const char* known : {"float-quantized", "naive-quantized", "int-quantized", "pack-quantized",
                              "nvfp4-pack-quantized", "dense", "mixed-precision"})
      if (format == known) return;
    refuse(at.at("format"), "float-quantized, int-quantized, pack-quantized or nvfp4-pack-quantized", format);
  };
  expect_format(q);
  if (const auto sparsity = q.find("sparsity_config"); sparsity && sparsity->is_object())
    if (const std::string format = sparsity->string("format", "dense"); format != "dense")
      refuse(*sparsity, "format dense", format);
  for (const JsonRef& group : q.at("config_groups").elements()) {
    expect_format(group);
    read_group(group, out);
  }
}

// modelopt's name of what it did; matrices say themselves which of it is theirs.
void read_modelopt(const JsonRef& q, QuantConfig& out) {
  out.name = "modelopt", out.method = QuantMethod::kModelOpt;
  const std::string algorithm = q.at("quant_algo").string();
  for (const char* known : {"NVFP4", "W4A16_NVFP4", "FP8", "MIXED_PRECISION"})
    if (algorithm == known) return;
  refuse(q.at("quant_algo"), "NVFP4, W4A16_NVFP4, FP8 or MIXED_PRECISION", algorithm);
}

}  // namespace

QuantConfig read_quant_config(const JsonRef& config) {
  QuantConfig out;
  const auto q = config.find("quantization_config");
  if (!q) return out;
  out.name = q->at("quant_method").string();
  if (out.name == "fp8" || out.name == "fbgemm_fp8") {
    out.method = QuantMethod::kFp8;
    expect_string(*q, "fmt", "e4m3", "e4m3");
    if (const auto block = q->find("weight_block_size")) out.block = read_block(*block);
  } else if (out.name == "compressed-tensors") {
    out.method = QuantMethod::kCompressedTensors;
    read_compressed_tensors(*q, out);
  } else if (out.name == "gptq") {
    out.method = QuantMethod::kGptq;
    expect_four_bits(*q, "bits");
    const std::string format = q->string("checkpoint_format", "gptq");
    if (format != "gptq" && format != "gptq_v2") refuse(q->at("checkpoint_format"), "gptq or gptq_v2", format);
    out.zeros = format == "gptq" ? GptqZeros::kOneLessByWord : GptqZeros::kAsTheyAre;
    out.zeros_are_known = format == "gptq_v2" || is_of_gptqmodel(*q);
  } else if (out.name == "awq") {
    out.method = QuantMethod::kAwq;
    expect_four_bits(*q, q->find("bits") ? "bits" : "w_bit");
    expect_string(*q, "version", "gemm", "gemm");
  } else if (out.name == "mxfp4") {
    out.method = QuantMethod::kMxfp4;
  } else if (out.name == "modelopt" || out.name == "modelopt_fp4") {
    read_modelopt(*q, out);
  } else {
    fail(ErrorKind::kUnsupported,
         "{}: quantization_config.quant_method '{}'; this build reads fp8, fbgemm_fp8, compressed-tensors, gptq, awq, "
         "mxfp4, modelopt",
         config.file(), out.name);
  }
  return out;
}

QuantConfig read_modelopt_config(const JsonRef& file) {
  QuantConfig out;
  read_modelopt(file.at("quantization"), out);
  return out;
}

bool is_unread_scale(std::string_view name) {
  for (const std::string_view end : {".input_scale", ".input_scale_ub", ".input_global_scale", ".activation_scale",
                                     ".k_scale", ".v_scale", ".weight_shape"})
    if (name.ends_with(end)) return true;
  return false;
}

}  // namespace mneme

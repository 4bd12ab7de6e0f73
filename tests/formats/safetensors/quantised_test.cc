// Quantised safetensors: values are those of the goldens (tools/make_safetensors_goldens.py), and damaged parts are
// errors that name them.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "src/formats/checkpoint.h"
#include "src/formats/open/convert.h"
#include "src/formats/safetensors/quantised.h"
#include "src/ops/gemm/gemm.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

const std::string kData = MNEME_SOURCE_DIR "/tests/formats/safetensors/data/";

// Tensors of a golden case by their name in a folder.
struct GoldenCase {
  QuantConfig config;
  std::int64_t n = 0, k = 0;
  std::string type;
  std::vector<std::int64_t> rows;
  std::map<std::string, SafetensorsTensor> parts;  // "m.weight_scale"

  WeightSpec spec() const { return {"ours", "m.weight", n, k}; }
  std::optional<RepackedMatrix> repack() const {
    ThreadPool pool(2);
    return repack_quantised(config, spec(), finder(), "folder", pool);
  }
  SafetensorsTensor& part(const std::string& name) { return parts.at("m." + name); }

  std::function<const SafetensorsTensor*(const std::string&)> finder() const {
    return [this](const std::string& name) {
      const auto it = parts.find(name);
      return it == parts.end() ? nullptr : &it->second;
    };
  }
};

struct Goldens {
  std::string bytes = read_file(kData + "quantised.safetensors");
  std::map<std::string, GoldenCase> cases;

  Goldens() {
    const std::vector<SafetensorsTensor> tensors = parse_safetensors(as_bytes(bytes), "quantised.safetensors");
    const Json json = Json::parse(read_file(kData + "quantised.json"));
    for (const Json& c : json["cases"]) {
      GoldenCase& out = cases[c["name"]];
      const Json config = {{"quantization_config", c["config"]}};
      out.config = read_quant_config(JsonRef(config, "config.json"));
      out.n = c["n"];
      out.k = c["k"];
      out.type = c["type"];
      out.rows = c["rows"].get<std::vector<std::int64_t>>();
      const std::string prefix = c["name"].get<std::string>() + ".";
      for (const SafetensorsTensor& t : tensors)
        if (t.name.starts_with(prefix)) {
          SafetensorsTensor& part = out.parts["m." + t.name.substr(prefix.size())] = t;
          part.name = "m." + t.name.substr(prefix.size());
        }
    }
  }
};

Goldens& goldens() {
  static Goldens all;
  return all;
}

// A row in the matrix's own order of columns.
std::vector<float> row_of(const RepackedMatrix& m, std::int64_t n, std::int64_t k, std::int64_t row) {
  std::vector<float> stored(k), out(k);
  dequantise_row(ConstTensorView(m.blocks.data(), m.dtype, {n, k}), row, stored.data());
  for (std::int64_t j = 0; j < k; ++j) out[m.columns.empty() ? j : m.columns[j]] = stored[j];
  return out;
}

TEST(Quantised, ValuesAreThoseOfTheFormat) {
  ASSERT_EQ(goldens().cases.size(), 24u);
  for (auto& [name, c] : goldens().cases) {
    SCOPED_TRACE(name);
    const auto m = c.repack();
    ASSERT_TRUE(m);
    EXPECT_EQ(dtype_name(m->dtype), c.type);
    EXPECT_EQ(m->columns.empty(), name.find("act_order") == std::string::npos);
    // compressed-tensors divides each scale; we multiply with the inverse, which is rounded too.
    const float most = name == "ct_nvfp4" ? 0x1p-22f : 0.0f;
    const auto* truth = reinterpret_cast<const float*>(c.part("truth").data.data());
    for (const std::int64_t r : c.rows) {
      const std::vector<float> row = row_of(*m, c.n, c.k, r);
      for (std::int64_t j = 0; j < c.k; ++j, ++truth)
        ASSERT_TRUE(std::abs(row[j] - *truth) <= most * std::abs(*truth) || (std::isnan(row[j]) && std::isnan(*truth)))
            << "row " << r << " column " << j << ": " << row[j] << ", expected " << *truth;
    }
  }
}

TEST(Quantised, EverySplitOverThreadsGivesTheSameBlocks) {
  const GoldenCase& c = goldens().cases.at("fp8_block");
  const auto two = c.repack();
  ThreadPool pool(3);
  const auto three = repack_quantised(c.config, c.spec(), c.finder(), "folder", pool);
  ASSERT_EQ(two->blocks.size(), three->blocks.size());
  EXPECT_EQ(std::memcmp(two->blocks.data(), three->blocks.data(), two->blocks.size()), 0);
}

TEST(Quantised, ProductsFollowTheOrderOfColumns) {
  const GoldenCase& c = goldens().cases.at("gptq_act_order");
  const auto m = c.repack();
  const WeightMatrix w(ConstTensorView(m->blocks.data(), m->dtype, {c.n, c.k}), m->columns);
  const WeightMatrix plain(ConstTensorView(m->blocks.data(), m->dtype, {c.n, c.k}));
  ThreadPool pool(2);
  Rng rng(3);
  for (const std::int64_t n : {1, 3, 20}) {
    Tensor x(DType::kF32, {n, c.k}), y(DType::kF32, {n, c.n}), ignored(DType::kF32, {n, c.n});
    for (std::int64_t i = 0; i < n * c.k; ++i) x.as<float>()[i] = static_cast<float>(rng.normal());
    gemm_cpu(x, std::array{GemmOutput{.w = &w, .y = y}, GemmOutput{.w = &plain, .y = ignored}}, {.pool = &pool});
    for (std::int64_t r = 0; r < c.n; ++r) {
      const std::vector<float> row = row_of(*m, c.n, c.k, r);
      double sum = 0.0, squares = 0.0;
      for (std::int64_t j = 0; j < c.k; ++j) {
        const double product = x.as<float>()[(n - 1) * c.k + j] * double{row[j]};
        sum += product;
        squares += product * product;
      }
      EXPECT_NEAR(y.as<float>()[(n - 1) * c.n + r], sum, 4 * 0x1p-8 * std::sqrt(squares)) << n << " rows, output " << r;
      EXPECT_GT(std::abs(ignored.as<float>()[(n - 1) * c.n + r] - sum), 1e-6) << "the order is used";
    }
  }
}

TEST(Quantised, WeightsInFloatsAreNone) {
  GoldenCase c = goldens().cases.at("gptq");
  c.parts.clear();
  EXPECT_FALSE(c.repack());
  c.parts["m.weight"] = {.name = "m.weight", .rank = 2, .dims = {24, 256}, .type = SafetensorsType::kBF16, .data = {}};
  EXPECT_FALSE(c.repack());
}

struct BadPart {
  std::string name, golden;
  std::function<void(GoldenCase&)> change;
  ErrorKind kind;
  std::string culprit, expected;
};

void PrintTo(const BadPart& c, std::ostream* out) {
  *out << c.name;
}

auto without(const char* part) {
  return [part](GoldenCase& c) { c.parts.erase(std::string("m.") + part); };
}
auto shaped(const char* part, std::int64_t rows, std::int64_t columns) {
  return [=](GoldenCase& c) { c.part(part).dims = {rows, columns, 1, 1}; };
}
auto typed(const char* part, SafetensorsType type) {
  return [=](GoldenCase& c) { c.part(part).type = type; };
}
auto as_matrix(std::int64_t n, std::int64_t k) {
  return [=](GoldenCase& c) {
    c.n = n;
    c.k = k;
  };
}
auto extra(const char* part, SafetensorsType type) {
  return [=](GoldenCase& c) {
    SafetensorsTensor& t = c.parts[std::string("m.") + part];
    t = {.name = std::string("m.") + part, .rank = 2, .dims = {1, 1, 1, 1}, .type = type, .data = {}};
  };
}
auto group_of(std::size_t column, std::int32_t group) {
  return [=](GoldenCase& c) {
    SafetensorsTensor& t = c.part("g_idx");
    static std::vector<std::int32_t> changed;
    changed.resize(t.data.size() / 4);
    std::memcpy(changed.data(), t.data.data(), t.data.size());
    changed[column] = group;
    t.data = std::as_bytes(std::span(changed));
  };
}
auto unconfigured() {
  return [](GoldenCase& c) { c.config = {}; };
}

std::vector<BadPart> bad_parts() {
  constexpr auto kFormat = ErrorKind::kFormat, kUnsupported = ErrorKind::kUnsupported;
  return {
      {"fp8_without_scale", "fp8_block", without("weight_scale_inv"), kFormat, "m.weight_scale", "missing"},
      {"fp8_scales_one_short", "fp8_block", shaped("weight_scale_inv", 1, 2), kFormat, "m.weight_scale_inv", "[2, 2]"},
      {"fp8_scales_of_integers", "fp8_block", typed("weight_scale_inv", SafetensorsType::kI32), kFormat,
       "m.weight_scale_inv", "F32"},
      {"fp8_without_config", "fp8_block", unconfigured(), kFormat, "m.weight", "quant_method is none"},
      {"fp8_of_other_shape", "fp8_block", as_matrix(136, 256), kFormat, "m.weight", "F8_E4M3 [136, 256]"},
      {"fp8_narrow_rows", "fp8_tensor",
       [](GoldenCase& c) {
         as_matrix(32, 32)(c);
         shaped("weight", 32, 32)(c);
       },
       kUnsupported, "m.weight", "multiple of 64"},
      {"fp8_narrow_blocks", "fp8_block",
       [](GoldenCase& c) {
         c.config.block = {136, 96};
         shaped("weight_scale_inv", 1, 2)(c);
       },
       kUnsupported, "m.weight_scale_inv", "multiple of 64"},
      {"weight_of_words", "fp8_tensor", typed("weight", SafetensorsType::kI32), kFormat, "m.weight", "F8_E4M3 or I8"},
      {"int8_without_scale", "ct_int8_f32", without("weight_scale"), kFormat, "m.weight_scale", "missing"},
      {"int8_scales_one_short", "ct_int8_f32", shaped("weight_scale", 15, 1), kFormat, "m.weight_scale", "[16, 1]"},
      {"int8_zero_points", "ct_int8_f32", extra("weight_zero_point", SafetensorsType::kI8), kUnsupported,
       "m.weight_zero_point", "symmetric"},
      {"packed_int8_zero_points", "ct_packed_int8", extra("weight_zero_point", SafetensorsType::kI32), kUnsupported,
       "m.weight_zero_point", "symmetric"},
      {"packed_int8_order", "ct_packed_int8", extra("weight_g_idx", SafetensorsType::kI32), kUnsupported,
       "m.weight_g_idx", "another order"},
      {"packed_without_scale", "ct_int4", without("weight_scale"), kFormat, "m.weight_scale", "missing"},
      {"packed_scales_one_short", "ct_int4", shaped("weight_scale", 19, 2), kFormat, "m.weight_scale", "[20, groups]"},
      {"packed_groups_uneven", "ct_int4", shaped("weight_scale", 20, 3), kFormat, "m.weight_scale", "multiple of 32"},
      {"packed_scales_of_floats", "ct_int4", typed("weight_scale", SafetensorsType::kF32), kFormat, "m.weight_scale",
       "F16 or BF16"},
      {"packed_zeros_short", "ct_int4", shaped("weight_zero_point", 2, 2), kFormat, "m.weight_zero_point", "[3, 2]"},
      {"packed_words_short", "ct_int4", shaped("weight_packed", 20, 31), kFormat, "m.weight_packed", "[20, 32]"},
      {"packed_other_shape", "ct_int4",
       [](GoldenCase& c) {
         as_matrix(10, 512)(c);
         shaped("weight_packed", 10, 64)(c);
       },
       kFormat, "m.weight_shape", "[10, 512]"},
      {"packed_other_rows", "ct_int4",
       [](GoldenCase& c) {
         as_matrix(10, 256)(c);
         shaped("weight_packed", 10, 32)(c);
       },
       kFormat, "m.weight_shape", "[10, 256]"},
      {"packed_other_columns", "ct_int4",
       [](GoldenCase& c) {
         as_matrix(20, 512)(c);
         shaped("weight_packed", 20, 64)(c);
       },
       kFormat, "m.weight_shape", "[20, 512]"},
      {"packed_by_another_method", "ct_int4", [](GoldenCase& c) { c.config.method = QuantMethod::kGptq; }, kFormat,
       "m.weight_packed", "quant_method"},
      {"gptq_without_zeros", "gptq", without("qzeros"), kFormat, "m.qzeros", "missing"},
      {"gptq_zeros_short", "gptq", shaped("qzeros", 4, 2), kFormat, "m.qzeros", "[4, 3]"},
      {"gptq_scales_short", "gptq", shaped("scales", 4, 23), kFormat, "m.scales", "[groups, 24]"},
      {"gptq_words_short", "gptq", shaped("qweight", 31, 24), kFormat, "m.qweight", "[32, 24]"},
      {"gptq_words_of_bytes", "gptq", typed("qweight", SafetensorsType::kU8), kFormat, "m.qweight", "I32"},
      {"gptq_group_out_of_range", "gptq", group_of(7, 4), kFormat, "m.g_idx", "0 to 3, found 4"},
      {"gptq_group_below_0", "gptq", group_of(255, -1), kFormat, "m.g_idx", "found -1"},
      {"gptq_groups_of_other_sizes", "gptq", group_of(7, 3), kFormat, "m.g_idx", "64 columns, found 63"},
      {"gptq_order_short", "gptq",
       [](GoldenCase& c) {
         c.part("g_idx").dims = {255, 1, 1, 1};
       },
       kFormat, "m.g_idx", "I32 [256]"},
      {"gptq_odd_outputs", "gptq", as_matrix(25, 256), kUnsupported, "m.qweight", "multiple of 8"},
      {"gptq_odd_rows", "gptq", as_matrix(24, 250), kUnsupported, "m.weight", "multiple of 32"},
      {"awq_words_short", "awq", shaped("qweight", 255, 3), kFormat, "m.qweight", "[256, 3]"},
      {"awq_zeros_short", "awq", shaped("qzeros", 1, 3), kFormat, "m.qzeros", "[2, 3]"},
  };
}

class QuantisedBad : public testing::TestWithParam<BadPart> {};

TEST_P(QuantisedBad, IsAnErrorThatNamesIt) {
  const BadPart& bad = GetParam();
  GoldenCase c = goldens().cases.at(bad.golden);
  bad.change(c);
  expect_error(bad.kind, {"folder", "'" + bad.culprit, bad.expected}, [&] { c.repack(); });
}

INSTANTIATE_TEST_SUITE_P(Part, QuantisedBad, testing::ValuesIn(bad_parts()),
                         [](const auto& test) { return test.param.name; });

TEST(QuantConfig, WhatIsNotReadIsNamed) {
  const auto refuse = [](const Json& q, std::initializer_list<std::string> words,
                         ErrorKind kind = ErrorKind::kUnsupported) {
    const Json config = {{"quantization_config", q}};
    expect_error(kind, words, [&] { read_quant_config(JsonRef(config, "config.json")); });
  };
  const auto group = [](Json weights, const char* format = "pack-quantized") {
    return Json{{"quant_method", "compressed-tensors"},
                {"format", format},
                {"config_groups", {{"group_0", {{"weights", std::move(weights)}}}}}};
  };
  refuse({{"quant_method", "bitsandbytes"}}, {"config.json", "bitsandbytes", "fp8"});
  refuse({{"quant_method", "fp8"}, {"fmt", "e5m2"}}, {"fmt", "e4m3", "e5m2"});
  refuse({{"quant_method", "fp8"}, {"weight_block_size", {0, 128}}}, {"weight_block_size"}, ErrorKind::kFormat);
  refuse({{"quant_method", "fp8"}, {"weight_block_size", {128}}}, {"two sizes"}, ErrorKind::kFormat);
  refuse({{"quant_method", "fp8"}, {"weight_block_size", {1e15, 128}}}, {"weight_block_size"}, ErrorKind::kFormat);
  refuse({{"quant_method", "gptq"}, {"bits", 3}}, {"bits", "expected 4, found 3"});
  refuse({{"quant_method", "gptq"}}, {"bits", "missing"}, ErrorKind::kFormat);
  refuse({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}}, {"checkpoint_format", "marlin"});
  refuse({{"quant_method", "awq"}, {"bits", 8}}, {"bits", "found 8"});
  refuse({{"quant_method", "awq"}, {"bits", 4}, {"version", "GEMV"}}, {"version", "gemm", "gemv"});
  refuse(group({{"num_bits", 3}}), {"group_0.weights", "int of 3 bits"});
  refuse(group({{"num_bits", 4}, {"type", "float"}, {"group_size", 32}}), {"float of 4 bits"});
  refuse({{"quant_method", "modelopt"}, {"quant_algo", "INT4_AWQ"}}, {"quant_algo", "NVFP4", "INT4_AWQ"});
  refuse(group({{"num_bits", 4}}, "marlin-24"), {"format", "marlin-24"});
  Json sparse = group({{"num_bits", 8}}, "int-quantized");
  sparse["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  refuse(sparse, {"sparsity_config", "dense", "sparse-24-bitmask"});
  refuse("fp8", {"expected an object"}, ErrorKind::kFormat);
  refuse({{"quant_method", "compressed-tensors"}}, {"config_groups", "missing"}, ErrorKind::kFormat);
}

// A folder whose query matrices are quantised and all else is not.
HfBuilder folder_with(const char* golden) {
  HfBuilder b = HfBuilder::tiny();
  const GoldenCase& c = goldens().cases.at(golden);
  const Json json = Json::parse(read_file(kData + "quantised.json"));
  for (const Json& one : json["cases"])
    if (one["name"] == golden) b.config["quantization_config"] = one["config"];
  b.config["num_attention_heads"] = 4;
  b.config["head_dim"] = c.n / 4;
  b.config["hidden_size"] = c.k;
  b.config["num_key_value_heads"] = 4;
  b.tensors.clear();
  b.add("model.embed_tokens.weight", {40, c.k}, "F32");
  b.add("model.norm.weight", {c.k}, "F32");
  for (int layer = 0; layer < 2; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".";
    b.add(p + "input_layernorm.weight", {c.k}, "F32");
    b.add(p + "post_attention_layernorm.weight", {c.k}, "F32");
    for (const auto& [name, t] : c.parts) {
      if (name == "m.truth") continue;
      const std::vector<std::int64_t> shape(t.dims.begin(), t.dims.begin() + t.rank);
      b.tensors.push_back({p + "self_attn.q_proj." + name.substr(2), std::string(safetensors_type_name(t.type)), shape,
                           std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size())});
    }
    b.add(p + "self_attn.q_proj.input_scale", {1}, "F32");
    for (const char* m : {"k_proj", "v_proj"}) b.add(p + "self_attn." + m + ".weight", {c.n, c.k}, "F32");
    b.add(p + "self_attn.o_proj.weight", {c.k, c.n}, "F32");
    for (const char* m : {"gate_proj", "up_proj"}) b.add(p + "mlp." + m + ".weight", {96, c.k}, "F32");
    b.add(p + "mlp.down_proj.weight", {c.k, 96}, "F32");
  }
  std::stable_sort(b.tensors.begin(), b.tensors.end(), [](const HfTensor& x, const HfTensor& y) {
    const auto bytes = [](const HfTensor& t) { return t.dtype == "I64" ? 8 : t.dtype.ends_with("32") ? 4 : 1; };
    return bytes(x) > bytes(y);
  });
  return b;
}

TEST(Quantised, FoldersOpenAndConvert) {
  for (const char* golden :
       {"gptq_act_order", "awq", "ct_int8_f32", "fp8_tensor", "gptq_symmetric", "modelopt_nvfp4"}) {
    SCOPED_TRACE(golden);
    const GoldenCase& c = goldens().cases.at(golden);
    const HfBuilder b = folder_with(golden);
    TempFolder folder;
    b.write(folder);
    const auto checkpoint = Checkpoint::open(folder.path());
    const CheckpointTensor& q = checkpoint->require("blk.1.attn_q.weight", {c.n, c.k});
    EXPECT_EQ(dtype_name(q.view.dtype()), c.type);
    EXPECT_EQ(checkpoint->require("blk.1.attn_k.weight", {c.n, c.k}).view.dtype(), DType::kF32);
    convert_to_gguf(*checkpoint, folder / "out.gguf", DType::kF32, {});
    const auto gguf = Checkpoint::open(folder / "out.gguf");
    const CheckpointTensor& same = gguf->require("blk.1.attn_q.weight", {c.n, c.k});
    const auto* truth = reinterpret_cast<const float*>(c.parts.at("m.truth").data.data());
    // Heads of c.n / 4: the file's row 1 is the head's row of its second half (docs/reference/formats.md).
    for (const auto& [ours, theirs] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {1, c.n / 8}}) {
      const auto stored = std::find(c.rows.begin(), c.rows.end(), theirs);
      if (stored == c.rows.end()) continue;
      const float* row = same.view.row_as<float>(ours);
      for (std::int64_t j = 0; j < c.k; ++j)
        ASSERT_EQ(row[j], truth[(stored - c.rows.begin()) * c.k + j]) << "row " << ours << " column " << j;
    }
  }
}

TEST(Quantised, VectorsAndEmbeddingsInBytesAreNamed) {
  HfBuilder b = folder_with("awq");
  b.tensor("model.norm.weight").dtype = "I32";
  TempFolder folder;
  b.write(folder);
  expect_error(ErrorKind::kUnsupported, {"model.norm.weight", "BF16, F16 or F32", "I32 [256]"},
               [&] { Checkpoint::open(folder.path()); });
}

}  // namespace
}  // namespace mneme::test

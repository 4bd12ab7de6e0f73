#include "src/formats/open/convert.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <tuple>

#include "src/formats/gguf/gguf_checkpoint.h"
#include "src/ops/gemm/gemm.h"
#include "tests/formats/gguf/gguf_builder.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

std::vector<float> values(const ConstTensorView& v) {
  std::vector<float> out(v.n_elements());
  const ConstTensorView rows = v.rank() == 1 ? ConstTensorView(v.data(), v.dtype(), {1, v.dim(0)}) : v;
  for (std::int64_t r = 0; r < rows.dim(0); ++r) dequantise_row(rows, r, out.data() + r * rows.dim(1));
  return out;
}

// Independent permutation of rows from halves (i, i + D/2) to neighbours (2i, 2i + 1).
std::vector<float> neighbours(const std::vector<float>& w, std::int64_t heads, std::int64_t head_dim) {
  const auto width = std::ssize(w) / (heads * head_dim);
  std::vector<float> out(w.size());
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t p = 0; p < 2; ++p)
      for (std::int64_t i = 0; i < head_dim / 2; ++i)
        for (std::int64_t k = 0; k < width; ++k)
          out[(h * head_dim + 2 * i + p) * width + k] = w[(h * head_dim + p * head_dim / 2 + i) * width + k];
  return out;
}

std::vector<float> expected_values(const Checkpoint& from, const CheckpointTensor& t) {
  const ModelConfig& c = from.config();
  const bool reorder = c.architecture == Architecture::kLlama || c.architecture == Architecture::kMistral ||
                       c.architecture == Architecture::kMistral3;
  if (reorder && t.name.ends_with("attn_q.weight")) return neighbours(values(t.view), c.n_heads, c.head_dim);
  if (reorder && t.name.ends_with("attn_k.weight")) return neighbours(values(t.view), c.n_kv_heads, c.head_dim);
  return values(t.view);
}

// Error bound of a value: the type's grid, relative to the block's largest value (0: exact).
double tolerance(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return 0.5 / 127 + 1.0 / 2048;  // half a step, and the scale in f16
    case DType::kQ4_0:
      return 1.0 / 8 + 1.0 / 2048;  // a whole step at the end that has one code less
    case DType::kQ4_1:
      return 1.0 / 15 + 3.0 / 2048;  // half a fifteenth of a range of up to twice the largest; scale and minimum in f16
    case DType::kBF16:
      return 1.0 / 256;
    case DType::kF16:
      return 1.0 / 2048;
    default:
      return 0.0;
  }
}

void expect_close(const CheckpointTensor& t, const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  const double tol = tolerance(t.view.dtype());
  for (std::size_t block = 0; block < found.size(); block += 32) {
    double largest = 0.0;
    const std::size_t end = std::min(block + 32, found.size());
    for (std::size_t i = block; i < end; ++i) largest = std::max(largest, std::fabs(double{expected[i]}));
    for (std::size_t i = block; i < end; ++i) {
      const double diff = std::fabs(found[i] - double{expected[i]});
      ASSERT_TRUE(diff <= tol * largest) << t.name << " value " << i << ": " << found[i] << ", expected "
                                         << expected[i];
    }
  }
}

class Convert : public testing::TestWithParam<std::tuple<const char*, DType>> {};

TEST_P(Convert, FolderToGguf) {
  const auto [type, dtype] = GetParam();
  TempFolder folder;
  HfBuilder b = HfBuilder::tiny(type);
  b.config["tie_word_embeddings"] = false;
  b.add("lm_head.weight", {40, 64});
  b.write(folder);
  const auto from = Checkpoint::open(folder.path());
  std::int64_t last = -1;
  const ConvertResult result =
      convert_to_gguf(*from, folder / "out.gguf", dtype, [&](std::string_view, std::int64_t done, std::int64_t total) {
        EXPECT_EQ(done, ++last);
        EXPECT_EQ(total, std::ssize(from->tensors()));
      });
  EXPECT_EQ(last, result.tensors);
  EXPECT_EQ(result.bytes, std::filesystem::file_size(folder / "out.gguf"));
  EXPECT_EQ(result.kept_in_bf16, 0);

  const auto to = Checkpoint::open(folder / "out.gguf");
  ModelConfig c = to->config();
  const ModelConfig& original = from->config();
  EXPECT_EQ(c.rope.pairs, original.architecture == Architecture::kQwen2 || original.architecture == Architecture::kQwen3
                              ? RopePairs::kHalves
                              : RopePairs::kNeighbours);
  EXPECT_EQ(
      std::tie(c.name, c.n_layers, c.hidden, c.ffn, c.n_heads, c.n_kv_heads, c.head_dim, c.vocab, c.max_context,
               c.sliding_window),
      std::tie(original.name, original.n_layers, original.hidden, original.ffn, original.n_heads, original.n_kv_heads,
               original.head_dim, original.vocab, original.max_context, original.sliding_window));
  EXPECT_EQ(std::tie(c.tied_embeddings, c.qkv_bias, c.qk_norm),
            std::tie(original.tied_embeddings, original.qkv_bias, original.qk_norm));
  EXPECT_EQ(c.rope.theta, original.rope.theta);
  EXPECT_FLOAT_EQ(static_cast<float>(c.rms_eps), static_cast<float>(original.rms_eps));

  ASSERT_EQ(to->tensors().size(), from->tensors().size());
  for (const CheckpointTensor& t : to->tensors()) {
    SCOPED_TRACE(t.name);
    EXPECT_EQ(t.view.dtype(), t.view.rank() == 1 ? DType::kF32 : dtype);
    expect_close(t, values(t.view), expected_values(*from, *from->find(t.name)));
  }
}

std::string convert_name(const testing::TestParamInfo<std::tuple<const char*, DType>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param), dtype_name(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Types, Convert,
                         testing::Combine(testing::Values("llama", "mistral", "qwen2", "qwen3", "ministral3"),
                                          testing::Values(DType::kF32, DType::kBF16, DType::kF16, DType::kQ8_0,
                                                          DType::kQ4_0, DType::kQ4_1)),
                         convert_name);

TEST(Convert, MatricesOfExpertsBecomeStacksAndTheRouterStaysExact) {
  TempFolder folder;
  HfBuilder::tiny("qwen3_moe").write(folder);
  const auto from = Checkpoint::open(folder.path());
  convert_to_gguf(*from, folder / "out.gguf", DType::kBF16);
  const auto to = Checkpoint::open(folder / "out.gguf");
  const ExpertConfig &a = from->config().experts, &b = to->config().experts;
  EXPECT_EQ(std::tie(a.n, a.n_used, a.ffn, a.normalise), std::tie(b.n, b.n_used, b.ffn, b.normalise));
  EXPECT_EQ(to->require("blk.1.ffn_gate_inp.weight", {4, 64}).view.dtype(), DType::kF32);
  const ConstTensorView stack = to->require("blk.1.ffn_down_exps.weight", {4, 64, 32}).view;
  for (int e = 0; e < 4; ++e) {
    const ConstTensorView one = from->require("blk.1.ffn_down." + std::to_string(e) + ".weight", {64, 32}).view;
    EXPECT_EQ(std::memcmp(stack.row(e), one.data(), 64 * 32 * 2), 0) << e;
  }
  convert_to_gguf(*to, folder / "again.gguf", DType::kBF16);
  EXPECT_EQ(read_file(folder / "again.gguf"), read_file(folder / "out.gguf")) << "a stack stays one";
}

TEST(Convert, GptOssKeepsItsWindowsBiasesAndBlocks) {
  TempFolder folder;
  HfBuilder b = HfBuilder::tiny("gpt_oss");
  b.config["layer_types"] = {"full_attention", "sliding_attention"};
  b.config["swiglu_limit"] = 5.0;
  b.write(folder);
  const auto from = Checkpoint::open(folder.path());
  convert_to_gguf(*from, folder / "out.gguf", DType::kMXFP4);
  const auto to = Checkpoint::open(folder / "out.gguf");
  const ModelConfig &a = from->config(), &c = to->config();
  EXPECT_EQ(c.architecture, Architecture::kGptOss);
  EXPECT_EQ(std::tie(c.sliding_window, c.windowed, c.qkv_bias), std::tie(a.sliding_window, a.windowed, a.qkv_bias));
  EXPECT_EQ(c.windowed, (std::vector<bool>{false, true}));
  EXPECT_EQ(std::tie(c.experts.n, c.experts.n_used, c.experts.ffn, c.experts.biases, c.experts.limit),
            std::tie(a.experts.n, a.experts.n_used, a.experts.ffn, a.experts.biases, a.experts.limit));
  EXPECT_FALSE(c.rope.truncate);
  for (const char* name : {"blk.1.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"}) {
    const ConstTensorView x = from->find(name)->view, y = to->find(name)->view;
    ASSERT_EQ(y.to_string(), x.to_string()) << name;
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.dim(0) * x.stride_bytes()), 0) << name;
  }
  EXPECT_EQ(to->find("blk.0.ffn_gate_exps.bias")->view.to_string(), "f32 [4, 96]");
  EXPECT_EQ(to->find("blk.1.attn_sinks.weight")->view.to_string(), "f32 [4]");
}

TEST(Convert, Ministral3KeepsItsTemperatureAndItsScaleOfCosines) {
  TempFolder folder;
  HfBuilder::tiny("ministral3").write(folder);
  const auto from = Checkpoint::open(folder.path());
  convert_to_gguf(*from, folder / "out.gguf", DType::kQ8_0);
  const ModelConfig c = Checkpoint::open(folder / "out.gguf")->config();
  EXPECT_FLOAT_EQ(static_cast<float>(c.temperature), 0.1f);
  EXPECT_EQ(c.temperature_context, 128);
  EXPECT_NEAR(c.rope.attention_factor, 1.0, 1e-6);
}

TEST(Convert, Bf16WeightsKeepTheirBits) {
  TempFolder folder;
  HfBuilder::tiny("qwen3").write(folder);
  const auto from = Checkpoint::open(folder.path());
  convert_to_gguf(*from, folder / "out.gguf", DType::kBF16);
  const auto to = Checkpoint::open(folder / "out.gguf");
  for (const char* name : {"token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight"}) {
    const ConstTensorView a = from->find(name)->view, b = to->find(name)->view;
    ASSERT_EQ(a.to_string(), b.to_string());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.n_elements()) * 2), 0) << name;
  }
}

TEST(Convert, KeepsMetadataThatDoesNotDescribeTheComputation) {
  TempFolder folder;
  GgufBuilder b = GgufBuilder::tiny();
  b.set("general.license", "apache-2.0");
  b.set("general.tags", std::vector<std::string>{"text", "\u00fc"});
  b.set("general.base_model.count", std::uint32_t{1});
  b.set("quantize.imatrix.file", "imatrix.dat");
  const auto from = Checkpoint::open(folder.write("in.gguf", b.build()));
  convert_to_gguf(*from, folder / "out.gguf", DType::kQ8_0);
  const auto to = Checkpoint::open(folder / "out.gguf");
  const auto value = [&](const char* key) {
    for (const MetadataEntry& e : to->metadata())
      if (e.key == key) return e.value;
    return std::string("absent");
  };
  EXPECT_EQ(value("general.license"), "apache-2.0");
  EXPECT_EQ(value("general.tags"), "[\"text\", \"\u00fc\"]");
  EXPECT_EQ(value("general.base_model.count"), "1");
  EXPECT_EQ(value("quantize.imatrix.file"), "absent") << "says how the weights of the source were made";
  EXPECT_EQ(value("general.file_type"), "7");
}

TEST(Convert, GgufToGgufCopiesWhatHasTheTypeAlready) {
  TempFolder folder;
  const GgufBuilder b = GgufBuilder::tiny();
  const auto from = Checkpoint::open(folder.write("in.gguf", b.build()));
  convert_to_gguf(*from, folder / "out.gguf", DType::kQ8_0);
  const auto to = Checkpoint::open(folder / "out.gguf");
  EXPECT_EQ(to->config().rope.pairs, RopePairs::kNeighbours);
  for (const CheckpointTensor& t : to->tensors()) {
    const ConstTensorView& original = from->find(t.name)->view;
    if (original.dtype() == DType::kQ8_0) {
      EXPECT_EQ(std::memcmp(original.data(), t.view.data(), static_cast<std::size_t>(original.n_elements()) * 34 / 32),
                0);
    }
    expect_close(t, values(t.view), values(original));
  }
  EXPECT_EQ(to->tokenizer().pre, "qwen2");
  EXPECT_EQ(to->tokenizer().tokens, from->tokenizer().tokens);
}

void expect_equal(const TokenizerData& a, const TokenizerData& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.pre_patterns, b.pre_patterns);
  EXPECT_EQ(std::tie(a.tokens, a.scores, a.types, a.merges), std::tie(b.tokens, b.scores, b.types, b.merges));
  EXPECT_EQ(std::tie(a.bos, a.eos, a.eot, a.unk, a.pad, a.eog), std::tie(b.bos, b.eos, b.eot, b.unk, b.pad, b.eog));
  EXPECT_EQ(std::tie(a.add_bos, a.add_eos, a.ignore_merges, a.pre_add_prefix_space),
            std::tie(b.add_bos, b.add_eos, b.ignore_merges, b.pre_add_prefix_space));
  const bool marks = a.kind == TokenizerKind::kSentencePiece;
  EXPECT_TRUE(!marks || a.add_space_prefix == b.add_space_prefix);
  EXPECT_EQ(std::tie(a.space_rule, a.split_at_marks), std::tie(b.space_rule, b.split_at_marks));
  EXPECT_TRUE(!marks || a.fuse_unknown == b.fuse_unknown);
  const auto flags = [](const TokenizerData& t) {
    std::vector<std::pair<int, int>> out;
    for (const AddedFlags& f : t.added_flags) out.emplace_back(f.id, f.flags);
    return out;
  };
  EXPECT_EQ(flags(a), flags(b));
  EXPECT_EQ(a.chat_template, b.chat_template);
  EXPECT_EQ(a.named_templates, b.named_templates);
}

TEST(Convert, SchemesOfMetaspaceAndFlagsOfAddedTokensComeThrough) {
  HfBuilder b = HfBuilder::tiny();
  b.tokenizer = HfBuilder::sentencepiece_tokenizer();
  b.tokenizer["normalizer"] = nullptr;
  b.tokenizer["model"]["fuse_unk"] = true;
  b.tokenizer["added_tokens"][2]["rstrip"] = true;
  for (const char* scheme : {"always", "first", "never"}) {
    b.tokenizer["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", *scheme == 'f'}};
    TempFolder folder;
    b.write(folder);
    const auto from = Checkpoint::open(folder.path());
    convert_to_gguf(*from, folder / "out.gguf", DType::kF32);
    expect_equal(Checkpoint::open(folder / "out.gguf")->tokenizer(), from->tokenizer());
  }
}

TEST(Convert, Llama3sPatternWithoutWholePiecesStaysWithoutThem) {
  HfBuilder b = HfBuilder::tiny();
  b.tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"behavior", "Isolated"},
         {"pattern",
          {{"Regex", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"}}}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  TempFolder folder;
  b.write(folder);
  convert_to_gguf(*Checkpoint::open(folder.path()), folder / "out.gguf", DType::kF32);
  const TokenizerData t = Checkpoint::open_tokenizer(folder / "out.gguf");
  EXPECT_EQ(t.pre, "smaug-bpe") << "llama-bpe takes a piece that is a token whole";
  EXPECT_FALSE(t.ignore_merges);
}

TEST(Convert, TokenizersComeThrough) {
  HfBuilder b = HfBuilder::tiny();
  b.tokenizer_config = {{"eos_token", "</s>"},
                        {"pad_token", "a"},
                        {"add_bos_token", true},
                        {"bos_token", "<s>"},
                        {"chat_template",
                         {{{"name", "default"}, {"template", "{{ x }}"}},
                          {{"name", "tool_use"}, {"template", "{{ tools }}"}},
                          {{"name", "rag"}, {"template", "{{ documents }}"}}}}};
  b.generation_config = {{"eos_token_id", {1, 29}}};
  b.tokenizer["model"]["ignore_merges"] = true;
  for (const bool sentencepiece : {false, true}) {
    if (sentencepiece) b.tokenizer = HfBuilder::sentencepiece_tokenizer();
    if (sentencepiece) b.generation_config = {{"eos_token_id", {2, 9}}};
    TempFolder folder;
    b.write(folder);
    const auto from = Checkpoint::open(folder.path());
    convert_to_gguf(*from, folder / "out.gguf", DType::kF32);
    expect_equal(Checkpoint::open(folder / "out.gguf")->tokenizer(), from->tokenizer());
  }
}

TEST(Convert, KnownPatternsGetTheirName) {
  HfBuilder b = HfBuilder::tiny();
  b.tokenizer["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  TempFolder folder;
  b.write(folder);
  convert_to_gguf(*Checkpoint::open(folder.path()), folder / "out.gguf", DType::kF32);
  const TokenizerData t = Checkpoint::open_tokenizer(folder / "out.gguf");
  EXPECT_EQ(t.pre, "gpt-2");
  EXPECT_TRUE(t.pre_patterns.empty());
}

RopeConfig rope_through_gguf(const Json& scaling, const char* type = "llama") {
  HfBuilder b = HfBuilder::tiny(type);
  b.config["rope_scaling"] = scaling;
  TempFolder folder;
  b.write(folder);
  convert_to_gguf(*Checkpoint::open(folder.path()), folder / "out.gguf", DType::kF32);
  return Checkpoint::open(folder / "out.gguf")->config().rope;
}

TEST(Convert, RopeScalingsComeThrough) {
  RopeConfig r = rope_through_gguf({{"type", "linear"}, {"factor", 4.0}});
  EXPECT_EQ(r.scaling, RopeScaling::kLinear);
  EXPECT_EQ(r.factor, 4.0);
  r = rope_through_gguf({{"type", "dynamic"}, {"factor", 2.0}});
  EXPECT_EQ(r.scaling, RopeScaling::kDynamic);
  EXPECT_EQ(r.original_context, 512);
  r = rope_through_gguf({{"type", "yarn"},
                         {"factor", 4.0},
                         {"original_max_position_embeddings", 256},
                         {"beta_fast", 16},
                         {"beta_slow", 2}},
                        "qwen2");
  EXPECT_EQ(r.scaling, RopeScaling::kYarn);
  EXPECT_EQ(r.original_context, 256);
  EXPECT_EQ(std::tie(r.beta_fast, r.beta_slow, r.attention_factor), std::make_tuple(16.0, 2.0, 0.0));
  r = rope_through_gguf({{"type", "yarn"}, {"factor", 4.0}, {"attention_factor", 1.5}});
  EXPECT_NEAR(r.attention_factor, 1.5, 1e-6);
}

TEST(Convert, Llama3ScalingBecomesFactors) {
  const RopeConfig r = rope_through_gguf({{"rope_type", "llama3"},
                                          {"factor", 8.0},
                                          {"low_freq_factor", 1.0},
                                          {"high_freq_factor", 4.0},
                                          {"original_max_position_embeddings", 256}});
  EXPECT_EQ(r.scaling, RopeScaling::kNone);
  ASSERT_EQ(r.freq_factors.size(), 16u);
  const RopeTable plain = RopeTable::make({.theta = 10000.0}, 32, 512);
  const RopeTable direct = RopeTable::make({.theta = 10000.0,
                                            .scaling = RopeScaling::kLlama3,
                                            .factor = 8.0,
                                            .original_context = 256,
                                            .low_freq_factor = 1.0,
                                            .high_freq_factor = 4.0},
                                           32, 512);
  for (std::size_t i = 0; i < 16; ++i) {
    const double divided = plain.inv_freq[i] / r.freq_factors[i];
    EXPECT_TRUE(std::fabs(divided / direct.inv_freq[i] - 1.0) <= 1e-7) << i;
  }
  EXPECT_EQ(r.freq_factors.front(), 1.0f);
  EXPECT_EQ(r.freq_factors.back(), 8.0f);
}

TEST(Convert, RowsThatFillNoBlockStayInBf16) {
  TempFolder folder;
  HfBuilder b = HfBuilder::tiny();
  b.config["intermediate_size"] = 80;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string p = "model.layers." + std::to_string(layer) + ".mlp.";
    for (const char* name : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) b.erase_tensor(p + name);
    b.add(p + "gate_proj.weight", {80, 64});
    b.add(p + "up_proj.weight", {80, 64});
    b.add(p + "down_proj.weight", {64, 80});
  }
  b.write(folder);
  const ConvertResult result = convert_to_gguf(*Checkpoint::open(folder.path()), folder / "out.gguf", DType::kQ8_0);
  EXPECT_EQ(result.kept_in_bf16, 2);
  const auto to = Checkpoint::open(folder / "out.gguf");
  EXPECT_EQ(to->find("blk.0.ffn_down.weight")->view.dtype(), DType::kBF16);
  EXPECT_EQ(to->find("blk.0.ffn_up.weight")->view.dtype(), DType::kQ8_0);
}

TEST(Convert, EveryTypeThatIsWrittenKeepsTheWeights) {
  TempFolder folder;
  const std::string bytes = GgufBuilder::wide(30, 30).build();
  const auto from = open_gguf(as_bytes(bytes), "in.gguf");
  // Root mean square error of normal weights, in parts of theirs; tests/ops/gemm/quant_test.cc has the types' own bounds.
  const std::pair<DType, double> kMost[] = {{DType::kQ5_0, 0.05}, {DType::kQ5_1, 0.05},   {DType::kQ2_K, 0.35},
                                            {DType::kQ3_K, 0.2},  {DType::kQ4_K, 0.09},   {DType::kQ5_K, 0.05},
                                            {DType::kQ6_K, 0.03}, {DType::kIQ4_NL, 0.09}, {DType::kMXFP4, 0.15}};
  for (const auto& [type, most] : kMost) {
    SCOPED_TRACE(dtype_name(type));
    const ConvertResult result = convert_to_gguf(*from, folder / "out.gguf", type);
    EXPECT_EQ(result.kept_in_bf16, 0);
    EXPECT_EQ(result.in_narrower, 0);
    const auto to = Checkpoint::open(folder / "out.gguf");
    for (const CheckpointTensor& t : to->tensors()) {
      if (t.view.rank() == 1) continue;
      ASSERT_EQ(t.view.dtype(), type) << t.name;
      const std::vector<float> found = values(t.view), expected = values(from->find(t.name)->view);
      double error = 0.0, square = 0.0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        error += std::pow(double{found[i] - expected[i]}, 2);
        square += std::pow(double{expected[i]}, 2);
      }
      EXPECT_LE(std::sqrt(error / square), most) << t.name;
    }
  }
}

TEST(Convert, RowsOfNoSuperBlockTakeANarrowerType) {
  TempFolder folder;
  const std::string bytes = GgufBuilder::tiny().build();  // rows of 64, 96 and 128
  const auto from = open_gguf(as_bytes(bytes), "in.gguf");
  const std::pair<DType, DType> kNarrower[] = {{DType::kQ2_K, DType::kQ4_0},
                                               {DType::kQ3_K, DType::kQ4_0},
                                               {DType::kQ4_K, DType::kQ5_0},
                                               {DType::kQ5_K, DType::kQ5_1},
                                               {DType::kQ6_K, DType::kQ8_0}};
  for (const auto& [type, narrower] : kNarrower) {
    const ConvertResult result = convert_to_gguf(*from, folder / "out.gguf", type);
    EXPECT_EQ(result.in_narrower, 15);
    EXPECT_EQ(result.narrower, narrower);
    EXPECT_EQ(result.kept_in_bf16, 0);
    EXPECT_EQ(Checkpoint::open(folder / "out.gguf")->find("blk.1.ffn_down.weight")->view.dtype(), narrower);
  }
}

TEST(Convert, OutputThatCannotBeWritten) {
  const std::string bytes = GgufBuilder::tiny().build();
  const auto from = open_gguf(as_bytes(bytes), "in.gguf");
  TempFolder folder;
  expect_error(ErrorKind::kFile, {"none/out.gguf"},
               [&] { convert_to_gguf(*from, folder / "none/out.gguf", DType::kF32); });
}

}  // namespace
}  // namespace mneme::test

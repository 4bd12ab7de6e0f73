// Damaged and invalid Hugging Face folders: each is one change to a valid one, and the error that must name it.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "src/formats/checkpoint.h"
#include "src/formats/json.h"
#include "src/formats/safetensors/safetensors.h"
#include "tests/formats/safetensors/hf_builder.h"

namespace mneme::test {
namespace {

struct BadCase {
  std::string name;
  std::function<void(HfBuilder&)> change;
  ErrorKind kind;
  std::string culprit;
};

void PrintTo(const BadCase& c, std::ostream* out) {
  *out << c.name;
}

auto config(const char* key, Json value) {
  return [key, value](HfBuilder& b) { b.config[key] = value; };
}
auto no_config(const char* key) {
  return [key](HfBuilder& b) { b.config.erase(key); };
}
auto tokenizer(const char* pointer, Json value) {
  return [pointer, value](HfBuilder& b) { b.tokenizer[Json::json_pointer(pointer)] = value; };
}
auto file(const char* name, std::string content) {
  return [name, content](HfBuilder& b) { b.extra[name] = content; };
}

std::vector<BadCase> file_cases() {
  const std::string deep = "{\"a\":" + std::string(100000, '[');
  return {
      {"config_empty", file("config.json", ""), ErrorKind::kFormat, "config.json"},
      {"config_cut", file("config.json", "{\"model_type\": \"lla"), ErrorKind::kFormat, "config.json"},
      {"config_array", file("config.json", "[]"), ErrorKind::kFormat, "expected an object"},
      {"config_deep", file("config.json", deep), ErrorKind::kFormat, "deeper than 64"},
      {"config_key_twice", file("config.json", "{\"a\": 1, \"a\": 2}"), ErrorKind::kFormat, "'a' occurs twice"},
      {"config_not_utf8", file("config.json", "{\"a\": \"\xff\"}"), ErrorKind::kFormat, "UTF-8"},
      {"config_huge", file("config.json", "{\"a\": \"" + std::string(17u << 20, 'x') + "\"}"), ErrorKind::kFormat,
       "at most 16777216"},
      {"config_number_too_large", file("config.json", "{\"a\": 1e999}"), ErrorKind::kFormat, "too large"},
      {"config_rubbish_behind", file("config.json", "{} {}"), ErrorKind::kFormat, "config.json"},
      {"tokenizer_deep", file("tokenizer.json", deep), ErrorKind::kFormat, "tokenizer.json"},
      {"no_tokenizer", [](HfBuilder& b) { b.tokenizer = Json(); }, ErrorKind::kFile, "tokenizer.json"},
      {"only_tokenizer_model",
       [](HfBuilder& b) {
         b.tokenizer = Json();
         b.extra["tokenizer.model"] = "x";
       },
       ErrorKind::kUnsupported, "tokenizer.model"},
      {"template_not_utf8", file("chat_template.jinja", "\xc3"), ErrorKind::kFormat, "chat_template.jinja"},
      {"template_huge", file("chat_template.jinja", std::string((1u << 20) + 1, 'x')), ErrorKind::kFormat,
       "chat_template.jinja"},
      {"weights_empty", file("model.safetensors", ""), ErrorKind::kFormat, "model.safetensors: header length"},
      {"index_without_map", [](HfBuilder& b) { b.shards = 2, b.extra["model.safetensors.index.json"] = "{}"; },
       ErrorKind::kFormat, "weight_map"},
      {"index_empty",
       [](HfBuilder& b) { b.shards = 2, b.extra["model.safetensors.index.json"] = R"({"weight_map": {}})"; },
       ErrorKind::kFormat, "weight_map is empty"},
      {"index_climbs_out",
       [](HfBuilder& b) {
         b.shards = 2, b.extra["model.safetensors.index.json"] = R"({"weight_map": {"x": "../y.safetensors"}})";
       },
       ErrorKind::kFormat, "plain name"},
      {"shard_missing",
       [](HfBuilder& b) {
         b.shards = 2, b.extra["model.safetensors.index.json"] = R"({"weight_map": {"x": "model-9.safetensors"}})";
       },
       ErrorKind::kFile, "model-9.safetensors"},
      {"shard_has_more",
       [](HfBuilder& b) {
         b.shards = 2, b.extra["model.safetensors.index.json"] =
                           R"({"weight_map": {"model.norm.weight": "model-2-of-2.safetensors"}})";
       },
       ErrorKind::kFormat, "not where"},
      {"tensor_missing", [](HfBuilder& b) { b.erase_tensor("model.layers.1.mlp.up_proj.weight"); }, ErrorKind::kFormat,
       "model.layers.1.mlp.up_proj.weight"},
      {"tensor_unknown",
       [](HfBuilder& b) {
         b.add("model.layers.0.mlp.router.weight", {4, 64});
       },
       ErrorKind::kUnsupported, "router"},
      {"bias_unknown", [](HfBuilder& b) { b.add("model.layers.0.self_attn.q_proj.bias", {128}); },
       ErrorKind::kUnsupported, "q_proj.bias"},
      {"shape_turned",
       [](HfBuilder& b) {
         b.tensor("model.layers.0.self_attn.q_proj.weight").shape = {64, 128};
       },
       ErrorKind::kFormat, "'blk.0.attn_q.weight': expected [128, 64]"},
      {"type_f64", [](HfBuilder& b) { b.tensor("model.norm.weight").dtype = "F64"; }, ErrorKind::kUnsupported,
       "type F64"},
  };
}

std::vector<BadCase> config_cases() {
  const double huge = 1e30;
  return {
      {"no_model_type", no_config("model_type"), ErrorKind::kFormat, "'model_type' is missing"},
      {"model_type_number", config("model_type", 3), ErrorKind::kFormat, "model_type: expected a string, found 3"},
      {"mixtral", config("model_type", "mixtral"), ErrorKind::kUnsupported, "'mixtral'"},
      {"no_hidden", no_config("hidden_size"), ErrorKind::kFormat, "hidden_size"},
      {"layers_0", config("num_hidden_layers", 0), ErrorKind::kFormat, "number of layers"},
      {"layers_negative", config("num_hidden_layers", -1), ErrorKind::kFormat, "found -1"},
      {"layers_huge", config("num_hidden_layers", 1000000000000), ErrorKind::kFormat, "1000000000000"},
      {"layers_beyond_64_bits", config("num_hidden_layers", std::numeric_limits<std::uint64_t>::max()),
       ErrorKind::kFormat, "num_hidden_layers"},
      {"layers_fraction", config("num_hidden_layers", 2.5), ErrorKind::kFormat, "expected an integer, found 2.5"},
      {"layers_huge_float", config("num_hidden_layers", huge), ErrorKind::kFormat, "num_hidden_layers"},
      {"layers_text", config("num_hidden_layers", "2"), ErrorKind::kFormat, "expected an integer, found string"},
      {"layers_3", config("num_hidden_layers", 3), ErrorKind::kFormat, "model.layers.2"},
      {"heads_0", config("num_attention_heads", 0), ErrorKind::kFormat, "query heads"},
      {"kv_heads_3", config("num_key_value_heads", 3), ErrorKind::kFormat, "multiple of 3"},
      {"head_dim_odd", config("head_dim", 31), ErrorKind::kFormat, "even"},
      {"head_dim_0", config("head_dim", 0), ErrorKind::kFormat, "head_dim"},
      {"head_dim_cannot_follow", [](HfBuilder& b) { b.config.erase("head_dim"), b.config["num_attention_heads"] = 5; },
       ErrorKind::kFormat, "head_dim is missing"},
      {"epsilon_0", config("rms_norm_eps", 0), ErrorKind::kFormat, "epsilon"},
      {"theta_negative", config("rope_theta", -1.0), ErrorKind::kFormat, "theta"},
      {"vocabulary_other", config("vocab_size", 41), ErrorKind::kFormat, "token_embd.weight"},
      {"context_0", config("max_position_embeddings", 0), ErrorKind::kFormat, "context"},
      {"activation", config("hidden_act", "gelu"), ErrorKind::kUnsupported, "'gelu'"},
      {"experts_without_count",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("qwen3_moe");
         b.config.erase("num_experts");
       },
       ErrorKind::kFormat, "num_experts"},
      {"more_experts_used_than_there_are",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("qwen3_moe");
         b.config["num_experts_per_tok"] = 5;
       },
       ErrorKind::kFormat, "experts used: expected 1 to 4, found 5"},
      {"layers_without_experts",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("qwen3_moe");
         b.config["mlp_only_layers"] = {0};
       },
       ErrorKind::kUnsupported, "mlp_only_layers"},
      {"every_second_layer_sparse",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("qwen3_moe");
         b.config["decoder_sparse_step"] = 2;
       },
       ErrorKind::kUnsupported, "decoder_sparse_step"},
      {"expert_missing",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("qwen3_moe");
         b.erase_tensor("model.layers.1.mlp.experts.3.up_proj.weight");
       },
       ErrorKind::kFormat, "model.layers.1.mlp.experts.3.up_proj.weight"},
      {"expert_of_other_shape",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("qwen3_moe");
         b.tensor("model.layers.1.mlp.experts.3.up_proj.weight").shape = {64, 32};
       },
       ErrorKind::kFormat, "'blk.1.ffn_up.3.weight': expected [32, 64]"},
      {"mxfp4_without_scales",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("gpt_oss");
         b.erase_tensor("model.layers.1.mlp.experts.down_proj_scales");
       },
       ErrorKind::kFormat, "model.layers.1.mlp.experts.down_proj_scales"},
      {"mxfp4_scales_one_short",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("gpt_oss");
         HfTensor& t = b.tensor("model.layers.1.mlp.experts.gate_up_proj_scales");
         t.shape = {4, 192, 1}, t.data.resize(4 * 192);
       },
       ErrorKind::kFormat, "expected U8 [4, 192, 2], found U8 [4, 192, 1]"},
      {"mxfp4_blocks_of_other_type",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("gpt_oss");
         b.tensor("model.layers.0.mlp.experts.gate_up_proj_blocks").dtype = "I8";
       },
       ErrorKind::kFormat, "expected U8 [4, 192, 2, 16], found I8"},
      {"sinks_of_other_shape",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("gpt_oss");
         HfTensor& t = b.tensor("model.layers.0.self_attn.sinks");
         t.shape = {2}, t.data.resize(4);
       },
       ErrorKind::kFormat, "attn_sinks.weight': expected [4]"},
      {"layer_types_one_short",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("gpt_oss");
         b.config["layer_types"] = {"full_attention"};
       },
       ErrorKind::kFormat, "kinds of layers: expected 2, found 1"},
      {"swiglu_of_another_slope",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("gpt_oss");
         b.config["swiglu_alpha"] = 1.5;
       },
       ErrorKind::kUnsupported, "swiglu_alpha"},
      {"pictures_without_text", [](HfBuilder& b) { b.config["model_type"] = "mistral3"; }, ErrorKind::kFormat,
       "text_config"},
      {"temperature_without_context",
       [](HfBuilder& b) {
         b = HfBuilder::tiny("ministral3");
         b.config["rope_parameters"] = {{"rope_theta", 1e6}, {"llama_4_scaling_beta", 0.1}};
       },
       ErrorKind::kFormat, "original_max_position_embeddings"},
      {"quantised", config("quantization_config", {{"quant_method", "bitsandbytes"}}), ErrorKind::kUnsupported,
       "bitsandbytes"},
      {"mlp_bias", config("mlp_bias", true), ErrorKind::kUnsupported, "mlp_bias"},
      {"attention_bias", config("attention_bias", true), ErrorKind::kUnsupported, "attention_bias"},
      {"partial_rope", config("partial_rotary_factor", 0.5), ErrorKind::kUnsupported, "0.5"},
      {"scaling_proportional", config("rope_scaling", {{"rope_type", "proportional"}}), ErrorKind::kUnsupported,
       "'proportional'"},
      {"longrope_without_factors", config("rope_scaling", {{"rope_type", "longrope"}}), ErrorKind::kFormat,
       "'rope_scaling.short_factor'"},
      {"longrope_of_other_pairs",
       config("rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}}),
       ErrorKind::kFormat, "factors of longrope"},
      {"scaling_text", config("rope_scaling", "linear"), ErrorKind::kFormat, "rope_scaling"},
      {"scaling_without_factor", config("rope_scaling", {{"type", "linear"}}), ErrorKind::kFormat,
       "rope_scaling.factor"},
      {"factor_0", config("rope_scaling", {{"type", "linear"}, {"factor", 0}}), ErrorKind::kFormat,
       "rope_scaling.factor"},
      {"factor_negative", config("rope_scaling", {{"type", "yarn"}, {"factor", -4}}), ErrorKind::kFormat,
       "rope_scaling.factor"},
      {"llama3_without_length", config("rope_scaling", {{"type", "llama3"}, {"factor", 8}}), ErrorKind::kFormat,
       "original_max_position_embeddings"},
      {"llama3_bands",
       config("rope_scaling", {{"type", "llama3"},
                               {"factor", 8},
                               {"low_freq_factor", 4},
                               {"high_freq_factor", 1},
                               {"original_max_position_embeddings", 8}}),
       ErrorKind::kFormat, "low_freq_factor"},
      {"yarn_bands", config("rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_fast", 1}, {"beta_slow", 32}}),
       ErrorKind::kFormat, "beta_slow"},
      {"rope_per_layer_type", config("rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}),
       ErrorKind::kUnsupported, "rope_parameters"},
  };
}

std::vector<BadCase> tokenizer_cases() {
  return {
      {"no_model", [](HfBuilder& b) { b.tokenizer.erase("model"); }, ErrorKind::kFormat, "'model' is missing"},
      {"unigram", tokenizer("/model/type", "Unigram"), ErrorKind::kUnsupported, "'Unigram'"},
      {"wordpiece", tokenizer("/model/type", "WordPiece"), ErrorKind::kUnsupported, "'WordPiece'"},
      {"no_vocab", [](HfBuilder& b) { b.tokenizer["model"].erase("vocab"); }, ErrorKind::kFormat, "model.vocab"},
      {"vocab_empty", tokenizer("/model/vocab", Json::object()), ErrorKind::kFormat, "model.vocab"},
      {"vocab_list", tokenizer("/model/vocab", Json::array()), ErrorKind::kFormat, "model.vocab: expected an object"},
      {"id_text", tokenizer("/model/vocab/a", "2"), ErrorKind::kFormat, "model.vocab.a"},
      {"id_negative", tokenizer("/model/vocab/a", -1), ErrorKind::kFormat, "token 'a'"},
      {"id_far", tokenizer("/model/vocab/a", 16000000), ErrorKind::kFormat, "16000000"},
      {"id_twice", tokenizer("/model/vocab/a", 3), ErrorKind::kFormat, "share the id 3"},
      {"added_other_id", tokenizer("/added_tokens/2", {{"id", 31}, {"content", "ab"}}), ErrorKind::kFormat,
       "'ab' has id 31"},
      {"added_without_id", tokenizer("/added_tokens/2", {{"content", "x"}}), ErrorKind::kFormat, "added_tokens[2].id"},
      {"merge_of_one", tokenizer("/model/merges", {"ab"}), ErrorKind::kFormat, "model.merges[0]"},
      {"merge_of_three", tokenizer("/model/merges", {"a b", "a b c"}), ErrorKind::kFormat, "model.merges[1]"},
      {"merge_list_of_three", tokenizer("/model/merges", Json::array({Json::array({"a", "b", "c"})})),
       ErrorKind::kFormat, "model.merges[0]"},
      {"merge_number", tokenizer("/model/merges", Json::array({7})), ErrorKind::kFormat, "model.merges[0]"},
      {"prefix", tokenizer("/model/continuing_subword_prefix", "##"), ErrorKind::kUnsupported, "'##'"},
      {"dropout", tokenizer("/model/dropout", 0.1), ErrorKind::kUnsupported, "dropout"},
      {"no_pre_tokenizer", tokenizer("/pre_tokenizer", nullptr), ErrorKind::kUnsupported, "ByteLevel"},
      {"whitespace", tokenizer("/pre_tokenizer", {{"type", "Whitespace"}}), ErrorKind::kUnsupported, "'Whitespace'"},
      {"split_behavior", tokenizer("/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext"),
       ErrorKind::kUnsupported, "MergedWithNext"},
      {"byte_level_first",
       [](HfBuilder& b) {
         std::swap(b.tokenizer["pre_tokenizer"]["pretokenizers"][0], b.tokenizer["pre_tokenizer"]["pretokenizers"][1]);
       },
       ErrorKind::kUnsupported, "ByteLevel"},
      {"pattern_empty", tokenizer("/pre_tokenizer/pretokenizers/0/pattern/Regex", ""), ErrorKind::kFormat, "pattern"},
      {"normalizer", tokenizer("/normalizer", {{"type", "Lowercase"}}), ErrorKind::kUnsupported, "'Lowercase'"},
      {"post_processor", tokenizer("/post_processor", {{"type", "BertProcessing"}}), ErrorKind::kUnsupported,
       "'BertProcessing'"},
      {"metaspace_and_prepend",
       [](HfBuilder& b) {
         b.tokenizer = HfBuilder::sentencepiece_tokenizer();
         b.tokenizer["normalizer"] = {{"type", "Prepend"}, {"prepend", "▁"}};
         b.tokenizer["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}};
       },
       ErrorKind::kUnsupported, "Metaspace"},
      {"template_of_two",
       [](HfBuilder& b) {
         b.tokenizer = HfBuilder::sentencepiece_tokenizer();
         auto& single = b.tokenizer["post_processor"]["single"];
         single.insert(single.begin(), single[0]);
       },
       ErrorKind::kUnsupported, "more than one token"},
      {"template_id_outside",
       [](HfBuilder& b) {
         b.tokenizer = HfBuilder::sentencepiece_tokenizer();
         b.tokenizer["post_processor"]["special_tokens"]["<s>"]["ids"] = {99};
       },
       ErrorKind::kFormat, "99"},
      {"eos_not_a_token",
       [](HfBuilder& b) {
         b.tokenizer_config = {{"eos_token", "<nope>"}};
       },
       ErrorKind::kFormat, "'<nope>'"},
      {"eos_id_outside",
       [](HfBuilder& b) {
         b.generation_config = {{"eos_token_id", {1, 77}}};
       },
       ErrorKind::kFormat, "eos_token_id' is 77"},
      {"ends_without_end",
       [](HfBuilder& b) {
         b.generation_config = {{"eos_token_id", std::vector<int>(1025, 1)}};
       },
       ErrorKind::kFormat, "at most 1024 ids"},
      {"more_tokens_than_rows", tokenizer("/model/vocab/far", 40), ErrorKind::kFormat, "41 tokens"},
  };
}

class BadHf : public testing::TestWithParam<BadCase> {};

TEST_P(BadHf, IsNamed) {
  HfBuilder b = HfBuilder::tiny();
  GetParam().change(b);
  TempFolder folder;
  b.write(folder);
  expect_error(GetParam().kind, {folder.path().string(), GetParam().culprit}, [&] { Checkpoint::open(folder.path()); });
}

std::string case_name(const testing::TestParamInfo<BadCase>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Files, BadHf, testing::ValuesIn(file_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Config, BadHf, testing::ValuesIn(config_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Tokenizer, BadHf, testing::ValuesIn(tokenizer_cases()), case_name);

TEST(BadHfFolder, WithoutWeights) {
  TempFolder folder;
  HfBuilder b = HfBuilder::tiny();
  b.write(folder);
  std::filesystem::remove(folder / "model.safetensors");
  expect_error(ErrorKind::kFile, {"neither model.safetensors"}, [&] { Checkpoint::open(folder.path()); });
  folder.write("pytorch_model.bin", "x");
  expect_error(ErrorKind::kUnsupported, {"pytorch_model.bin"}, [&] { Checkpoint::open(folder.path()); });
  std::filesystem::create_directory(folder / "model.safetensors");
  expect_error(ErrorKind::kFile, {"model.safetensors", "a folder"}, [&] { Checkpoint::open(folder.path()); });
}

// The given header and n bytes of data.
std::string with_header(std::string header, std::size_t n) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(n, '\0');
}

TEST(BadSafetensors, IsNamed) {
  const auto bad = [](std::initializer_list<std::string> words, const std::string& bytes,
                      ErrorKind kind = ErrorKind::kFormat) {
    expect_error(kind, words, [&] { parse_safetensors(as_bytes(bytes), "x.safetensors"); });
  };
  const auto entry = [](const std::string& name, const std::string& type, const std::string& shape,
                        const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  const std::string a = entry("aa", "F32", "[2]", "[0,8]");
  EXPECT_EQ(parse_safetensors(as_bytes(with_header("{" + a + "}  ", 8)), "x").size(), 1u);

  bad({"x.safetensors", "header length"}, "1234567");
  bad({"header length", "100000000"}, std::string(8, '\xff'));
  bad({"header", "truncated"}, with_header("{}", 0).substr(0, 9));
  bad({"JSON"}, with_header("{]", 0));
  bad({"object"}, with_header("[]", 0));
  bad({"aa", "twice"}, with_header("{" + a + "," + a + "}", 8));
  bad({"aa", "truncated"}, with_header("{" + a + "}", 7));
  bad({"1 bytes at the end"}, with_header("{" + a + "}", 9));
  bad({"before tensor 'aa'"}, with_header("{" + entry("aa", "F32", "[2]", "[4,12]") + "}", 12));
  bad({"overlap"}, with_header("{" + a + "," + entry("bb", "F32", "[2]", "[4,12]") + "}", 12));
  bad({"overlap"}, with_header("{" + a + "," + entry("bb", "F32", "[2]", "[0,8]") + "}", 8));
  bad({"aa", "needs 12 bytes"}, with_header("{" + entry("aa", "F32", "[3]", "[0,8]") + "}", 8));
  bad({"aa.shape[0]"}, with_header("{" + entry("aa", "F32", "[0]", "[0,0]") + "}", 0));
  bad({"aa.shape[0]"}, with_header("{" + entry("aa", "F32", "[-2]", "[0,8]") + "}", 8));
  bad({"aa.shape[1]"}, with_header("{" + entry("aa", "F32", "[4294967296,4294967296]", "[0,8]") + "}", 8));
  bad({"aa", "8 to 0"}, with_header("{" + entry("aa", "F32", "[2]", "[8,0]") + "}", 8));
  bad({"aa", "-8"}, with_header("{" + entry("aa", "F32", "[2]", "[-8,0]") + "}", 8));
  bad({"two offsets"}, with_header("{" + entry("aa", "F32", "[2]", "[0,8,8]") + "}", 8));
  bad({"aa.dtype"}, with_header("{\"aa\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8));
  bad({"aa", "F8_E5M2"}, with_header("{" + entry("aa", "F8_E5M2", "[8]", "[0,8]") + "}", 8), ErrorKind::kUnsupported);
  bad({"aa", "6 dimensions"}, with_header("{" + entry("aa", "F32", "[1,1,1,1,1,2]", "[0,8]") + "}", 8),
      ErrorKind::kUnsupported);
}

TEST(Json, DepthOf64IsAllowed) {
  const auto nested = [](int n) {
    return std::string(static_cast<std::size_t>(n), '[') + std::string(static_cast<std::size_t>(n), ']');
  };
  EXPECT_TRUE(parse_json(nested(64), "j", 1000).is_array());
  expect_error(ErrorKind::kFormat, {"deeper than 64"}, [&] { parse_json(nested(65), "j", 1000); });
}

TEST(Json, BuildsWhatTheLibraryBuilds) {
  const std::string text = R"({"a":[1,-2,3.5,true,null,"\u00e9\ud83d\ude00",{"b":{}}],"c":18446744073709551615,"":[]})";
  EXPECT_EQ(parse_json(text, "j", 1000), Json::parse(text));
  EXPECT_EQ(parse_json("7", "j", 1000), Json(7));
}

}  // namespace
}  // namespace mneme::test

// Damaged and invalid GGUF files: each is one change to a valid file, and the error that must name it.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "src/formats/checkpoint.h"
#include "src/formats/gguf/gguf_checkpoint.h"
#include "tests/formats/files.h"
#include "tests/formats/gguf/gguf_builder.h"

namespace mneme::test {
namespace {

constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

struct BadCase {
  std::string name;
  std::function<void(GgufBuilder&)> change;
  ErrorKind kind;
  std::string culprit;
  std::function<void(std::string&)> damage = nullptr;
};

void PrintTo(const BadCase& c, std::ostream* out) {
  *out << c.name;
}

template <typename T>
std::string raw(T v) {
  return GgufBuilder::raw(v);
}

// A change to a mixture of experts.
auto mixture(std::function<void(GgufBuilder&)> change) {
  return [change](GgufBuilder& b) {
    b = GgufBuilder::mixture();
    change(b);
  };
}

auto gpt_oss(std::function<void(GgufBuilder&)> change) {
  return [change](GgufBuilder& b) {
    b = GgufBuilder::gpt_oss();
    change(b);
  };
}

std::vector<BadCase> container_cases() {
  const auto nothing = [](GgufBuilder&) {};
  return {
      {"empty", nothing, ErrorKind::kFormat, "magic", [](std::string& s) { s.clear(); }},
      {"three_bytes", nothing, ErrorKind::kFormat, "magic", [](std::string& s) { s.resize(3); }},
      {"other_magic", [](GgufBuilder& b) { b.magic = "GGML"; }, ErrorKind::kFormat, "47 47 4d 4c"},
      {"version_1", [](GgufBuilder& b) { b.version = 1; }, ErrorKind::kUnsupported, "version 1"},
      {"version_4", [](GgufBuilder& b) { b.version = 4; }, ErrorKind::kUnsupported, "version 4"},
      {"big_endian", [](GgufBuilder& b) { b.version = 0x03000000u; }, ErrorKind::kUnsupported, "big-endian"},
      {"only_a_header", nothing, ErrorKind::kFormat, "metadata count", [](std::string& s) { s.resize(24); }},
      {"huge_metadata_count", [](GgufBuilder& b) { b.entry_count = kHuge; }, ErrorKind::kFormat,
       "metadata count 18446744073709551615"},
      {"huge_tensor_count", [](GgufBuilder& b) { b.tensor_count = kHuge; }, ErrorKind::kFormat,
       "tensor count 18446744073709551615"},
      {"one_tensor_too_many", [](GgufBuilder& b) { b.tensor_count = b.tensors.size() + 1; }, ErrorKind::kFormat,
       "tensor"},
      {"key_longer_than_file", [](GgufBuilder& b) { b.entries[0].first = "x"; }, ErrorKind::kFormat,
       "key of metadata entry 0", [](std::string& s) { s.replace(24, 8, raw(kHuge)); }},
      {"empty_key", [](GgufBuilder& b) { b.entries[1].first = ""; }, ErrorKind::kFormat, "entry 1"},
      {"long_key", [](GgufBuilder& b) { b.entries[1].first = std::string(70000, 'k'); }, ErrorKind::kFormat,
       "70000 bytes"},
      {"key_not_utf8", [](GgufBuilder& b) { b.entries[1].first = "a\xff"; }, ErrorKind::kFormat, "0xff"},
      {"value_not_utf8", [](GgufBuilder& b) { b.set("general.name", "\xc0\x80"); }, ErrorKind::kFormat, "general.name"},
      {"token_not_utf8",
       [](GgufBuilder& b) { b.set("tokenizer.ggml.tokens", std::vector<std::string>{"\xed\xa0\x80"}); },
       ErrorKind::kFormat, "tokenizer.ggml.tokens"},
      {"key_twice", [](GgufBuilder& b) { b.entries.push_back(b.entries[2]); }, ErrorKind::kFormat,
       "llama.block_count' occurs twice"},
      {"unknown_value_type", [](GgufBuilder& b) { b.set_raw("x.y", raw<std::uint32_t>(13) + raw(0)); },
       ErrorKind::kFormat, "value type 13"},
      {"array_of_arrays",
       [](GgufBuilder& b) {
         b.set_raw("x.y", raw<std::uint32_t>(9) + raw<std::uint32_t>(9) + raw<std::uint64_t>(1) + raw(0));
       },
       ErrorKind::kUnsupported, "x.y"},
      {"huge_array",
       [](GgufBuilder& b) { b.set_raw("x.y", raw<std::uint32_t>(9) + raw<std::uint32_t>(10) + raw(kHuge / 8 + 2)); },
       ErrorKind::kFormat, "x.y"},
      {"huge_string_array",
       [](GgufBuilder& b) { b.set_raw("x.y", raw<std::uint32_t>(9) + raw<std::uint32_t>(8) + raw(kHuge)); },
       ErrorKind::kFormat, "18446744073709551615 strings"},
      {"string_past_the_end",
       [](GgufBuilder& b) { b.set_raw("x.y", raw<std::uint32_t>(8) + raw<std::uint64_t>(1u << 30)); },
       ErrorKind::kFormat, "x.y"},
      {"bool_of_2", [](GgufBuilder& b) { b.set_raw("x.y", raw<std::uint32_t>(7) + "\2"); }, ErrorKind::kFormat, "x.y"},
      {"alignment_0", [](GgufBuilder& b) { b.set("general.alignment", 0u); }, ErrorKind::kFormat, "general.alignment"},
      {"alignment_48", [](GgufBuilder& b) { b.set("general.alignment", 48u); }, ErrorKind::kFormat,
       "general.alignment"},
      {"alignment_text", [](GgufBuilder& b) { b.set("general.alignment", "32"); }, ErrorKind::kFormat,
       "general.alignment"},
  };
}

std::vector<BadCase> tensor_cases() {
  const auto with = [](const char* name, auto change) {
    return [name, change](GgufBuilder& b) { change(b.tensor(name)); };
  };
  using T = GgufBuilder::Tensor;
  return {
      {"no_dimensions", with("output_norm.weight", [](T& t) { t.dims.clear(); }), ErrorKind::kFormat,
       "output_norm.weight"},
      {"five_dimensions",
       with("output_norm.weight",
            [](T& t) {
              t.dims = {64, 1, 1, 1, 1};
            }),
       ErrorKind::kFormat, "5 dimensions"},
      {"dimension_0", with("output_norm.weight", [](T& t) { t.dims = {0}; }), ErrorKind::kFormat, "output_norm.weight"},
      {"dimensions_overflow",
       with("output_norm.weight",
            [](T& t) {
              t.dims = {1ull << 32, 1ull << 32};
            }),
       ErrorKind::kFormat, "2^48"},
      {"dimension_negative", with("output_norm.weight", [](T& t) { t.dims = {kHuge}; }), ErrorKind::kFormat,
       "output_norm.weight"},
      {"type_iq2_xxs", with("blk.0.ffn_up.weight", [](T& t) { t.type = 16; }), ErrorKind::kUnsupported,
       "'blk.0.ffn_up.weight' has type IQ2_XXS: its values are entries of a large codebook; take the model in Q2_K"},
      {"type_iq1_m", with("blk.0.ffn_up.weight", [](T& t) { t.type = 29; }), ErrorKind::kUnsupported, "IQ1_M: its"},
      {"type_tq1_0", with("blk.0.ffn_up.weight", [](T& t) { t.type = 34; }), ErrorKind::kUnsupported, "TQ1_0: made"},
      {"type_q8_k", with("blk.0.ffn_up.weight", [](T& t) { t.type = 15; }), ErrorKind::kUnsupported, "Q8_K: a type of"},
      {"type_removed", with("blk.0.ffn_up.weight", [](T& t) { t.type = 4; }), ErrorKind::kUnsupported,
       "Q4_2: removed from the format"},
      {"q4_k_in_rows_of_64", with("blk.0.ffn_up.weight", [](T& t) { t.type = 12; }), ErrorKind::kFormat,
       "rows of tensor 'blk.0.ffn_up.weight' have 64 elements; q4_k needs a multiple of 256"},
      {"mxfp4_in_rows_of_33",
       with("blk.0.attn_q.weight",
            [](T& t) {
              t.type = 39;
              t.dims = {33, 64};
            }),
       ErrorKind::kFormat, "33 elements; mxfp4 needs a multiple of 32"},
      {"more_bytes_than_there_are", with("blk.1.ffn_down.weight", [](T& t) { t.type = 0; }), ErrorKind::kFormat,
       "tensor 'blk.1.ffn_down.weight' of type f32 has 24576 bytes at offset"},
      {"part_of_a_split_file",
       [](GgufBuilder& b) {
         b.set("split.no", 0u);
         b.set("split.count", 3u);
       },
       ErrorKind::kFormat, "part 1 of 3, without the others"},
      {"part_beyond_the_count",
       [](GgufBuilder& b) {
         b.set("split.no", 3u);
         b.set("split.count", 3u);
       },
       ErrorKind::kFormat, "split.no is 3 and split.count 3"},
      {"absurd_number_of_parts", [](GgufBuilder& b) { b.set("split.count", 70000u); }, ErrorKind::kFormat, "70000"},
      {"type_unknown", with("blk.0.ffn_up.weight", [](T& t) { t.type = 4711; }), ErrorKind::kUnsupported, "type 4711"},
      {"row_not_a_block",
       with("blk.0.attn_q.weight",
            [](T& t) {
              t.dims = {33, 64};
            }),
       ErrorKind::kFormat, "multiple of 32"},
      {"offset_not_aligned", with("blk.0.attn_q.weight", [](T& t) { t.offset = 33; }), ErrorKind::kFormat, "offset 33"},
      {"offset_past_the_end", with("blk.0.attn_q.weight", [](T& t) { t.offset = 1u << 30; }), ErrorKind::kFormat,
       "blk.0.attn_q.weight"},
      {"offset_overflows", with("blk.0.attn_q.weight", [](T& t) { t.offset = kHuge - 31; }), ErrorKind::kFormat,
       "blk.0.attn_q.weight"},
      {"overlap", with("blk.0.attn_q.weight", [](T& t) { t.offset = 32; }), ErrorKind::kFormat, "overlap"},
      {"overlap_by_one_alignment",
       [](GgufBuilder& b) { b.tensors[1].offset = (b.tensors[0].data.size() + 31) / 32 * 32 - 32; }, ErrorKind::kFormat,
       "overlap"},
      {"same_place", with("blk.1.attn_norm.weight", [](T& t) { t.offset = 0; }), ErrorKind::kFormat, "overlap"},
      {"name_twice", with("blk.1.attn_norm.weight", [](T& t) { t.name = "blk.0.attn_norm.weight"; }),
       ErrorKind::kFormat, "'blk.0.attn_norm.weight' occurs twice"},
      {"name_empty", with("blk.1.attn_norm.weight", [](T& t) { t.name = ""; }), ErrorKind::kFormat, "name of tensor"},
      {"name_long", with("blk.1.attn_norm.weight", [](T& t) { t.name = std::string(65, 'n'); }), ErrorKind::kFormat,
       "65 bytes"},
      {"name_not_utf8", with("blk.1.attn_norm.weight", [](T& t) { t.name = "\xf8"; }), ErrorKind::kFormat, "UTF-8"},
      {"one_byte_short", [](GgufBuilder&) {}, ErrorKind::kFormat, "blk.1.ffn_down.weight",
       [](std::string& s) { s.resize(s.size() - 1); }},
      {"missing", [](GgufBuilder& b) { b.erase_tensor("blk.1.ffn_up.weight"); }, ErrorKind::kFormat,
       "'blk.1.ffn_up.weight' is missing"},
      {"no_embedding", [](GgufBuilder& b) { b.erase_tensor("token_embd.weight"); }, ErrorKind::kFormat,
       "token_embd.weight"},
      {"unknown_tensor",
       [](GgufBuilder& b) {
         b.add("blk.0.ffn_gate_exps.weight", {64, 96}, 0);
       },
       ErrorKind::kUnsupported, "ffn_gate_exps"},
      {"third_layer", [](GgufBuilder& b) { b.add("blk.2.attn_norm.weight", {64}, 0); }, ErrorKind::kUnsupported,
       "blk.2.attn_norm.weight"},
      {"shape_turned",
       with("blk.0.attn_output.weight",
            [](T& t) {
              t.dims = {64, 128};
            }),
       ErrorKind::kFormat, "expected [64, 128]"},
      {"vector_as_matrix",
       with("blk.0.attn_norm.weight",
            [](T& t) {
              t.dims = {64, 1};
            }),
       ErrorKind::kFormat, "expected [64]"},
      {"quantised_norm",
       [](GgufBuilder& b) { b.erase_tensor("output_norm.weight"), b.add("output_norm.weight", {64}, 8); },
       ErrorKind::kUnsupported, "output_norm.weight"},
      {"embedding_of_rank_3",
       with("token_embd.weight",
            [](T& t) {
              t.dims = {64, 20, 2};
            }),
       ErrorKind::kFormat, "token_embd.weight"},
      {"rope_freqs_short", [](GgufBuilder& b) { b.add("rope_freqs.weight", {8}, 0); }, ErrorKind::kFormat,
       "expected 16"},
      {"rope_freqs_f16", [](GgufBuilder& b) { b.add("rope_freqs.weight", {16}, 1); }, ErrorKind::kUnsupported,
       "rope_freqs.weight"},
  };
}

std::vector<BadCase> config_cases() {
  const auto set = [](const char* key, auto value) { return [key, value](GgufBuilder& b) { b.set(key, value); }; };
  const auto drop = [](const char* key) { return [key](GgufBuilder& b) { b.erase(key); }; };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  return {
      {"no_architecture", drop("general.architecture"), ErrorKind::kFormat, "general.architecture"},
      {"architecture_number", set("general.architecture", 3u), ErrorKind::kFormat, "expected a string, found u32"},
      {"architecture_unknown", set("general.architecture", "mamba"), ErrorKind::kUnsupported, "'mamba'"},
      {"no_layers_key", drop("llama.block_count"), ErrorKind::kFormat, "llama.block_count"},
      {"layers_0", set("llama.block_count", 0u), ErrorKind::kFormat, "number of layers"},
      {"layers_3", set("llama.block_count", 3u), ErrorKind::kFormat, "blk.2."},
      {"layers_absurd", set("llama.block_count", 0xffffffffu), ErrorKind::kFormat, "4294967295"},
      {"layers_text", set("llama.block_count", "2"), ErrorKind::kFormat, "expected an integer, found string"},
      {"layers_float", set("llama.block_count", 2.0f), ErrorKind::kFormat, "expected an integer, found f32"},
      {"layers_beyond_64_bits",
       [](GgufBuilder& b) { b.set_raw("llama.block_count", raw<std::uint32_t>(10) + raw(kHuge)); }, ErrorKind::kFormat,
       "18446744073709551615"},
      {"layers_negative", [](GgufBuilder& b) { b.set_raw("llama.block_count", raw<std::uint32_t>(5) + raw(-2)); },
       ErrorKind::kFormat, "-2"},
      {"no_hidden", drop("llama.embedding_length"), ErrorKind::kFormat, "embedding_length"},
      {"hidden_other", set("llama.embedding_length", 96u), ErrorKind::kFormat, "[40, 96]"},
      {"heads_0", set("llama.attention.head_count", 0u), ErrorKind::kFormat, "query heads"},
      {"kv_heads_0", set("llama.attention.head_count_kv", 0u), ErrorKind::kFormat, "KV heads"},
      {"kv_heads_3", set("llama.attention.head_count_kv", 3u), ErrorKind::kFormat, "multiple of 3"},
      {"head_dim_odd",
       [](GgufBuilder& b) {
         for (const char* k :
              {"llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count"})
           b.set(k, 31u);
       },
       ErrorKind::kFormat, "even"},
      {"value_length_other", set("llama.attention.value_length", 64u), ErrorKind::kUnsupported, "values of 64"},
      {"head_dim_cannot_follow",
       [](GgufBuilder& b) { b.erase("llama.attention.key_length"), b.set("llama.attention.head_count", 5u); },
       ErrorKind::kFormat, "key_length"},
      {"heads_per_layer",
       [](GgufBuilder& b) {
         b.set_array("llama.attention.head_count_kv", 4, std::vector<std::uint32_t>{2, 1});
       },
       ErrorKind::kUnsupported, "differs between layers"},
      {"heads_of_no_layer",
       [](GgufBuilder& b) { b.set_array("llama.attention.head_count_kv", 4, std::vector<std::uint32_t>{}); },
       ErrorKind::kFormat, "head_count_kv"},
      {"partial_rope", set("llama.rope.dimension_count", 16u), ErrorKind::kUnsupported, "16 of 32"},
      {"experts", set("llama.expert_count", 8u), ErrorKind::kUnsupported, "8 experts"},
      {"more_experts_used_than_there_are", mixture([](GgufBuilder& b) { b.set("qwen3moe.expert_used_count", 5u); }),
       ErrorKind::kFormat, "experts used: expected 1 to 4, found 5"},
      {"no_experts", mixture([](GgufBuilder& b) { b.erase("qwen3moe.expert_count"); }), ErrorKind::kFormat,
       "qwen3moe.expert_count"},
      {"experts_without_width", mixture([](GgufBuilder& b) { b.set("qwen3moe.expert_feed_forward_length", 0u); }),
       ErrorKind::kFormat, "feed-forward size of an expert"},
      {"stack_of_fewer_experts", mixture([](GgufBuilder& b) {
         b.erase_tensor("blk.1.ffn_up_exps.weight");
         b.add("blk.1.ffn_up_exps.weight", {64, 32, 3}, 0);
       }),
       ErrorKind::kFormat, "'blk.1.ffn_up_exps.weight': expected [4, 32, 64]"},
      {"stack_missing", mixture([](GgufBuilder& b) { b.erase_tensor("blk.1.ffn_up_exps.weight"); }), ErrorKind::kFormat,
       "'blk.1.ffn_up_exps.weight' is missing"},
      {"stack_that_is_a_matrix", mixture([](GgufBuilder& b) {
         b.erase_tensor("blk.1.ffn_up_exps.weight");
         b.add("blk.1.ffn_up_exps.weight", {64, 128}, 0);
       }),
       ErrorKind::kFormat, "'blk.1.ffn_up_exps.weight': expected [4, 32, 64]"},
      {"router_of_other_shape", mixture([](GgufBuilder& b) {
         b.erase_tensor("blk.0.ffn_gate_inp.weight");
         b.add("blk.0.ffn_gate_inp.weight", {64, 5}, 0);
       }),
       ErrorKind::kFormat, "'blk.0.ffn_gate_inp.weight': expected [4, 64]"},
      {"pattern_one_short", gpt_oss([](GgufBuilder& b) {
         b.set_array("gpt-oss.attention.sliding_window_pattern", 5, std::vector<std::int32_t>{1});
       }),
       ErrorKind::kFormat, "kinds of layers: expected 2, found 1"},
      {"layers_with_a_window_of_no_size", gpt_oss([](GgufBuilder& b) { b.erase("gpt-oss.attention.sliding_window"); }),
       ErrorKind::kFormat, "sliding window: expected 1 to"},
      {"sinks_missing", gpt_oss([](GgufBuilder& b) { b.erase_tensor("blk.1.attn_sinks.weight"); }), ErrorKind::kFormat,
       "'blk.1.attn_sinks.weight' is missing"},
      {"sinks_of_kv_heads", gpt_oss([](GgufBuilder& b) {
         b.erase_tensor("blk.1.attn_sinks.weight");
         b.add("blk.1.attn_sinks.weight", {2}, 0);
       }),
       ErrorKind::kFormat, "'blk.1.attn_sinks.weight': expected [4]"},
      {"biases_of_fewer_experts", gpt_oss([](GgufBuilder& b) {
         b.erase_tensor("blk.0.ffn_up_exps.bias");
         b.add("blk.0.ffn_up_exps.bias", {32, 3}, 0);
       }),
       ErrorKind::kFormat, "'blk.0.ffn_up_exps.bias': expected [4, 32]"},
      {"experts_in_half_blocks_of_mxfp4", gpt_oss([](GgufBuilder& b) {
         b.erase_tensor("blk.0.ffn_down_exps.weight");
         b.add("blk.0.ffn_down_exps.weight", {48, 64, 4}, 39);
       }),
       ErrorKind::kFormat,
       "rows of tensor 'blk.0.ffn_down_exps.weight' have 48 elements; mxfp4 needs a multiple of 32"},
      {"temperature_without_context",
       [](GgufBuilder& b) {
         b.rename_architecture("mistral3");
         b.set("mistral3.attention.temperature_scale", 0.1f);
       },
       ErrorKind::kFormat, "mistral3.rope.scaling.original_context_length"},
      {"no_epsilon", drop("llama.attention.layer_norm_rms_epsilon"), ErrorKind::kFormat, "epsilon"},
      {"epsilon_0", set("llama.attention.layer_norm_rms_epsilon", 0.0f), ErrorKind::kFormat, "epsilon"},
      {"epsilon_nan", set("llama.attention.layer_norm_rms_epsilon", nan), ErrorKind::kFormat, "epsilon"},
      {"base_nan", set("llama.rope.freq_base", nan), ErrorKind::kFormat, "theta"},
      {"base_negative", set("llama.rope.freq_base", -1.0f), ErrorKind::kFormat, "theta"},
      {"base_infinite", set("llama.rope.freq_base", std::numeric_limits<float>::infinity()), ErrorKind::kFormat,
       "theta"},
      {"context_0", set("llama.context_length", 0u), ErrorKind::kFormat, "context length"},
      {"vocabulary_other", set("llama.vocab_size", 41u), ErrorKind::kFormat, "vocab_size"},
      {"scaling_unknown", set("llama.rope.scaling.type", "proportional"), ErrorKind::kUnsupported, "'proportional'"},
      {"longrope_without_context", set("llama.rope.scaling.type", "longrope"), ErrorKind::kFormat,
       "'llama.rope.scaling.original_context_length'"},
      {"longrope_without_factors",
       [](GgufBuilder& b) {
         b.set("llama.rope.scaling.type", "longrope");
         b.set("llama.rope.scaling.original_context_length", std::uint32_t{16});
       },
       ErrorKind::kFormat, "factors of longrope"},
      {"scaling_without_factor", set("llama.rope.scaling.type", "yarn"), ErrorKind::kFormat, "rope.scaling.factor"},
      {"factor_negative", set("llama.rope.scaling.factor", -2.0f), ErrorKind::kFormat, "factor"},
      {"factor_nan", set("llama.rope.scaling.factor", nan), ErrorKind::kFormat, "factor"},
  };
}

std::vector<BadCase> tokenizer_cases() {
  const auto set = [](const char* key, auto value) { return [key, value](GgufBuilder& b) { b.set(key, value); }; };
  const auto drop = [](const char* key) { return [key](GgufBuilder& b) { b.erase(key); }; };
  return {
      {"no_tokenizer", drop("tokenizer.ggml.model"), ErrorKind::kFormat, "tokenizer.ggml.model"},
      {"tokenizer_unknown", set("tokenizer.ggml.model", "bert"), ErrorKind::kUnsupported, "'bert'"},
      {"no_tokens", drop("tokenizer.ggml.tokens"), ErrorKind::kFormat, "tokenizer.ggml.tokens"},
      {"tokens_text", set("tokenizer.ggml.tokens", "abc"), ErrorKind::kFormat, "expected an array of string"},
      {"tokens_empty", set("tokenizer.ggml.tokens", std::vector<std::string>{}), ErrorKind::kFormat,
       "tokenizer.ggml.tokens"},
      {"more_tokens_than_rows", [](GgufBuilder& b) { b.set_tokenizer(41); }, ErrorKind::kFormat,
       "41 tokens, the embedding 40"},
      {"types_short", [](GgufBuilder& b) { b.set_array("tokenizer.ggml.token_type", 5, std::vector<std::int32_t>{1}); },
       ErrorKind::kFormat, "token_type"},
      {"type_7", [](GgufBuilder& b) { b.set_array("tokenizer.ggml.token_type", 5, std::vector<std::int32_t>(38, 7)); },
       ErrorKind::kFormat, "found 7"},
      {"no_merges", drop("tokenizer.ggml.merges"), ErrorKind::kFormat, "merges"},
      {"merge_of_one", set("tokenizer.ggml.merges", std::vector<std::string>{"a b", "ab"}), ErrorKind::kFormat,
       "merge 1"},
      {"merge_empty", set("tokenizer.ggml.merges", std::vector<std::string>{""}), ErrorKind::kFormat, "merge 0"},
      {"merge_half", set("tokenizer.ggml.merges", std::vector<std::string>{"a "}), ErrorKind::kFormat, "merge 0"},
      {"bos_outside", set("tokenizer.ggml.bos_token_id", 38u), ErrorKind::kFormat, "bos_token_id"},
      {"eos_text", set("tokenizer.ggml.eos_token_id", "end"), ErrorKind::kFormat, "eos_token_id"},
      {"add_bos_number", set("tokenizer.ggml.add_bos_token", 1u), ErrorKind::kFormat, "expected a bool"},
      {"template_number", set("tokenizer.chat_template", 1u), ErrorKind::kFormat, "chat_template"},
      {"no_scores", set("tokenizer.ggml.model", "llama"), ErrorKind::kFormat, "scores"},
      {"score_nan",
       [](GgufBuilder& b) {
         b.set("tokenizer.ggml.model", "llama");
         b.set_array("tokenizer.ggml.scores", 6, std::vector<float>(38, std::numeric_limits<float>::quiet_NaN()));
       },
       ErrorKind::kFormat, "scores"},
  };
}

class BadGguf : public testing::TestWithParam<BadCase> {};

TEST_P(BadGguf, IsNamed) {
  GgufBuilder b = GgufBuilder::tiny();
  GetParam().change(b);
  std::string bytes = b.build();
  if (GetParam().damage) GetParam().damage(bytes);
  bytes.shrink_to_fit();
  expect_error(GetParam().kind, {"bad.gguf", GetParam().culprit}, [&] { open_gguf(as_bytes(bytes), "bad.gguf"); });
}

std::string case_name(const testing::TestParamInfo<BadCase>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Container, BadGguf, testing::ValuesIn(container_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Tensors, BadGguf, testing::ValuesIn(tensor_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Config, BadGguf, testing::ValuesIn(config_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Tokenizer, BadGguf, testing::ValuesIn(tokenizer_cases()), case_name);

TEST(BadPath, IsNamed) {
  TempFolder folder;
  expect_error(ErrorKind::kFile, {"none.gguf"}, [&] { Checkpoint::open(folder / "none.gguf"); });
  expect_error(ErrorKind::kFile, {"none.gguf"}, [&] { Checkpoint::open_tokenizer(folder / "none.gguf"); });
  expect_error(ErrorKind::kFile, {"config.json"}, [&] { Checkpoint::open(folder.path()); });
  expect_error(ErrorKind::kFile, {"tokenizer.json"}, [&] { Checkpoint::open_tokenizer(folder.path()); });
  folder.write("config.json", "{}");
  expect_error(ErrorKind::kFile, {"config.json", "folder"}, [&] { Checkpoint::open(folder / "config.json"); });
  expect_error(ErrorKind::kFile, {"/dev/null"}, [&] { Checkpoint::open("/dev/null"); });
}

}  // namespace
}  // namespace mneme::test

// Every field of a model's configuration, in every architecture, through `mneme convert` and back. A field that is
// added is a compile error here until it is listed, and a failure until a change of it comes through.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>

#include "src/base/underlying.h"
#include "src/formats/config_check.h"
#include "src/formats/family.h"
#include "src/formats/gguf/gguf_metadata.h"
#include "src/formats/open/convert.h"
#include "src/formats/weight_names.h"
#include "src/tensor/buffer.h"
#include "tests/formats/files.h"

namespace mneme::test {
namespace {

using Fields = std::map<std::string, std::string>;

std::string text(double v) {
  return fmt::format("{:.5g}", v);  // GGUF has f32
}

// All fields as text. The bindings name every member: one more does not compile.
Fields fields_of(const ModelConfig& c) {
  const auto& [architecture, name, n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, max_context,
               sliding_window, windowed, rms_eps, tied_embeddings, qkv_bias, o_bias, sinks, qk_norm, qk_norm_all,
               qk_norm_behind, norms, unrotated, plain_windows, window_theta, gate, embedding_scale, residual_scale,
               attention_scale, logit_divisor, logit_cap, rope, experts, delta, output_gate, temperature,
               temperature_context] = c;
  const auto& [theta, pairs, scaling, factor, original_context, low_freq_factor, high_freq_factor, beta_fast, beta_slow,
               attention_factor, truncate, freq_factors, rotary_dim, short_factors, long_factors] = rope;
  const auto& [n, n_used, expert_ffn, normalise, biases, limit, shared] = experts;
  const auto& [n_k_heads, n_v_heads, d_k, d_v, taps, tiled, state_layers] = delta;
  return {{"architecture", std::string(architecture_name(architecture))},
          {"name", name},
          {"n_layers", std::to_string(n_layers)},
          {"hidden", std::to_string(hidden)},
          {"ffn", std::to_string(ffn)},
          {"n_heads", std::to_string(n_heads)},
          {"n_kv_heads", std::to_string(n_kv_heads)},
          {"head_dim", std::to_string(head_dim)},
          {"vocab", std::to_string(vocab)},
          {"max_context", std::to_string(max_context)},
          {"sliding_window", std::to_string(sliding_window)},
          {"windowed", fmt::format("{}", fmt::join(windowed.begin(), windowed.end(), " "))},
          {"rms_eps", text(rms_eps)},
          {"tied_embeddings", std::to_string(tied_embeddings)},
          {"qkv_bias", std::to_string(qkv_bias)},
          {"o_bias", std::to_string(o_bias)},
          {"sinks", std::to_string(sinks)},
          {"qk_norm", std::to_string(qk_norm)},
          {"qk_norm_all", std::to_string(qk_norm_all)},
          {"qk_norm_behind", std::to_string(qk_norm_behind)},
          {"norms", std::to_string(underlying(norms))},
          {"unrotated", fmt::format("{}", fmt::join(unrotated.begin(), unrotated.end(), " "))},
          {"plain_windows", std::to_string(plain_windows)},
          {"window_theta", text(window_theta)},
          {"gate", std::to_string(underlying(gate))},
          {"logit_cap", text(logit_cap)},
          {"embedding_scale", text(embedding_scale)},
          {"residual_scale", text(residual_scale)},
          {"attention_scale", text(attention_scale)},
          {"logit_divisor", text(logit_divisor)},
          {"temperature", text(temperature)},
          {"temperature_context", std::to_string(temperature_context)},
          {"rope.theta", text(theta)},
          {"rope.pairs", std::to_string(underlying(pairs))},
          {"rope.scaling", std::to_string(underlying(scaling))},
          {"rope.factor", text(factor)},
          {"rope.original_context", std::to_string(original_context)},
          {"rope.low_freq_factor", text(low_freq_factor)},
          {"rope.high_freq_factor", text(high_freq_factor)},
          {"rope.beta_fast", text(beta_fast)},
          {"rope.beta_slow", text(beta_slow)},
          {"rope.attention_factor", text(attention_factor)},
          {"rope.truncate", std::to_string(truncate)},
          {"rope.freq_factors", fmt::format("{}", fmt::join(freq_factors, " "))},
          {"rope.rotary_dim", std::to_string(rotary_dim)},
          {"rope.short_factors", fmt::format("{}", fmt::join(short_factors, " "))},
          {"rope.long_factors", fmt::format("{}", fmt::join(long_factors, " "))},
          {"experts.n", std::to_string(n)},
          {"experts.n_used", std::to_string(n_used)},
          {"experts.ffn", std::to_string(expert_ffn)},
          {"experts.normalise", std::to_string(normalise)},
          {"experts.biases", std::to_string(biases)},
          {"experts.limit", text(limit)},
          {"experts.shared", std::to_string(shared)},
          {"output_gate", std::to_string(output_gate)},
          {"delta.n_k_heads", std::to_string(n_k_heads)},
          {"delta.n_v_heads", std::to_string(n_v_heads)},
          {"delta.d_k", std::to_string(d_k)},
          {"delta.d_v", std::to_string(d_v)},
          {"delta.taps", std::to_string(taps)},
          {"delta.tiled", std::to_string(tiled)},
          {"delta.layers", fmt::format("{}", fmt::join(state_layers.begin(), state_layers.end(), " "))}};
}

// Zeros in every weight of a configuration, and a tokenizer of as many tokens.
class ZeroCheckpoint final : public Checkpoint {
 public:
  explicit ZeroCheckpoint(const ModelConfig& config) : config_(config) {
    for_each_weight(config, [&](const WeightSpec& w) {
      const std::int64_t columns = std::max<std::int64_t>(w.n_in, 1), experts = std::max<std::int64_t>(w.n_experts, 1);
      const Buffer& zeros = memory_.emplace_back(experts * w.n_out * columns * sizeof(float));
      std::fill_n(zeros.data(), zeros.size(), std::byte{0});
      if (w.n_in == 0)
        tensors_.push_back({w.name, ConstTensorView(zeros.data(), DType::kF32, {w.n_out})});
      else if (w.n_experts == 0)
        tensors_.push_back({w.name, ConstTensorView(zeros.data(), DType::kF32, {w.n_out, w.n_in})});
      else
        tensors_.push_back({w.name, ConstTensorView(zeros.data(), DType::kF32, {w.n_experts, w.n_out, w.n_in})});
    });
    tokenizer_.kind = TokenizerKind::kSentencePiece;
    for (std::int64_t i = 0; i < config.vocab; ++i) {
      tokenizer_.tokens.push_back("t" + std::to_string(i));
      tokenizer_.types.push_back(TokenType::kNormal);
      tokenizer_.scores.push_back(0.0f);
    }
  }
  const ModelConfig& config() const override { return config_; }
  const TokenizerData& tokenizer() const override { return tokenizer_; }
  const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }
  const std::vector<MetadataEntry>& metadata() const override { return metadata_; }
  std::string_view format() const override { return "zeros"; }

 private:
  ModelConfig config_;
  TokenizerData tokenizer_;
  std::deque<Buffer> memory_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<MetadataEntry> metadata_;
};

bool has_experts(Architecture a) {
  return family_of(a).experts != ExpertNames::kNone;
}

ModelConfig base(Architecture a) {
  ModelConfig c;
  c.architecture = a;
  c.name = "base";
  c.n_layers = 2;
  c.hidden = c.ffn = 16;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.head_dim = 8;
  c.vocab = 12;
  c.max_context = 256;
  set_family_fields(c);
  set_usual_scales(c);
  c.unrotated = unrotated_by_layer(a, c.n_layers);
  c.windowed = windows_by_layer(a, c.n_layers);
  if (!c.windowed.empty()) c.sliding_window = 32;
  if (has_experts(a)) c.experts = {.n = 3, .n_used = 2, .ffn = 8};
  if (a == Architecture::kGptOss) {
    c.experts = {.n = 3, .n_used = 2, .ffn = 8, .normalise = true, .biases = true, .limit = 7.0};
    c.rope.truncate = false;
  }
  if (family_of(a).delta) {
    c.delta = {.n_k_heads = 2, .n_v_heads = 4, .d_k = 8, .d_v = 4, .taps = 4, .tiled = false, .layers = {true, false}};
    if (c.experts.n > 0) c.experts.shared = 8, c.ffn = 8;
  }
  return c;
}

// What a GGUF file holds of a configuration: mistral is llama, llama3 scaling are factors, rows of q and k are in the
// architecture's order.
ModelConfig as_gguf(ModelConfig c) {
  const std::vector<float> factors = gguf_freq_factors(c);
  c.architecture = family_of_gguf(gguf_architecture(c.architecture))->architecture;
  c.rope.pairs = gguf_rope_pairs(c.architecture);
  c.delta.tiled = family_of(c.architecture).tiled_in_gguf;
  if (c.rope.scaling != RopeScaling::kLlama3) return c;
  const RopeConfig before = c.rope;
  c.rope = {.theta = before.theta, .pairs = before.pairs, .truncate = before.truncate, .freq_factors = factors};
  return c;
}

Fields through_convert(const ModelConfig& c) {
  TempFolder folder;
  convert_to_gguf(ZeroCheckpoint(c), folder / "out.gguf", DType::kF32);
  return fields_of(Checkpoint::open(folder / "out.gguf")->config());
}

// One field of another value, or those that must change together.
struct Change {
  const char* field;
  std::function<void(ModelConfig&)> make;
  std::function<bool(Architecture)> applies = [](Architecture) { return true; };
};

auto yarn(std::function<void(RopeConfig&)> more) {
  return [more](ModelConfig& c) {
    c.rope.scaling = RopeScaling::kYarn;
    c.rope.factor = 4.0;
    c.rope.original_context = 64;
    more(c.rope);
    if (c.architecture == Architecture::kMistral3 && c.rope.attention_factor == 0.0) c.rope.attention_factor = 1.0;
  };
}

auto llama3(std::function<void(RopeConfig&)> more) {
  return [more](ModelConfig& c) {
    c.rope.scaling = RopeScaling::kLlama3;
    c.rope.factor = 8.0;
    c.rope.original_context = 64;
    more(c.rope);
  };
}

auto longrope(std::function<void(RopeConfig&)> more) {
  return [more](ModelConfig& c) {
    c.rope.scaling = RopeScaling::kLongRope;
    c.rope.original_context = 64;
    c.rope.attention_factor = 1.5;
    c.rope.short_factors = {1.0f, 1.0f, 2.0f, 2.0f};
    c.rope.long_factors = {1.0f, 2.0f, 4.0f, 8.0f};
    more(c.rope);
  };
}

std::vector<Change> changes_of_rope() {
  return {
      {"rope.theta", [](ModelConfig& c) { c.rope.theta = 5e5; }},
      {"rope.pairs", [](ModelConfig& c) { c.rope.pairs = RopePairs::kNeighbours; }},
      {"rope.scaling", [](ModelConfig& c) { c.rope.scaling = RopeScaling::kLinear, c.rope.factor = 2.0; }},
      {"rope.factor",
       [](ModelConfig& c) {
         c.rope.scaling = RopeScaling::kDynamic, c.rope.factor = 3.0, c.rope.original_context = 128;
       }},
      {"rope.original_context", yarn([](RopeConfig& r) { r.original_context = 100; })},
      {"rope.low_freq_factor", llama3([](RopeConfig& r) { r.low_freq_factor = 2.0; })},
      {"rope.high_freq_factor", llama3([](RopeConfig& r) { r.high_freq_factor = 8.0; })},
      {"rope.beta_fast", yarn([](RopeConfig& r) { r.beta_fast = 16.0; })},
      {"rope.beta_slow", yarn([](RopeConfig& r) { r.beta_slow = 2.0; })},
      {"rope.attention_factor", yarn([](RopeConfig& r) { r.attention_factor = 1.5; })},
      {"rope.attention_factor", yarn([](RopeConfig& r) { r.factor = 1.0, r.attention_factor = 1.5; })},
      {"rope.truncate", yarn([](RopeConfig& r) { r.truncate = !r.truncate; })},
      {"rope.freq_factors",
       [](ModelConfig& c) {
         c.rope.freq_factors = {1.0f, 2.0f, 3.0f, 4.0f};
       }},
  };
}

std::vector<Change> changes_of_parts() {
  const auto only = [](Architecture one) { return [one](Architecture a) { return a == one; }; };
  const auto gpt_oss = only(Architecture::kGptOss), mistral3 = only(Architecture::kMistral3);
  const auto llama = only(Architecture::kLlama), moe = only(Architecture::kQwen3Moe);
  const auto multiplied = [](Architecture a) { return family_of(a).multipliers; };
  const auto some_unrotated = [](Architecture a) { return family_of(a).unrotated_period > 0; };
  const auto partial = [](Architecture a) { return family_of(a).partial_rope; };
  const auto delta = [](Architecture a) { return family_of(a).delta; };
  const auto shared = [](Architecture a) { return family_of(a).experts == ExpertNames::kStackedRows; };
  const auto gemma = [](Architecture a) { return family_of(a).gate == Gate::kGelu; };
  return {
      {"experts.n", [](ModelConfig& c) { c.experts.n = 4; }, has_experts},
      {"experts.n_used", [](ModelConfig& c) { c.experts.n_used = 1; }, has_experts},
      {"experts.ffn", [](ModelConfig& c) { c.experts.ffn = 16; }, has_experts},
      {"experts.normalise", [](ModelConfig& c) { c.experts.normalise = false; }, moe},
      {"experts.limit", [](ModelConfig& c) { c.experts.limit = 3.5; }, gpt_oss},
      {"windowed",
       [](ModelConfig& c) {
         c.windowed = {false, true};
       },
       gpt_oss},
      {"windowed",
       [](ModelConfig& c) {
         c.windowed = {false, false};
       },
       gpt_oss},
      {"qkv_bias", [](ModelConfig& c) { c.qkv_bias = true; }, llama},
      {"embedding_scale", [](ModelConfig& c) { c.embedding_scale = 12.0; }, multiplied},
      {"residual_scale", [](ModelConfig& c) { c.residual_scale = 0.25; }, multiplied},
      {"attention_scale", [](ModelConfig& c) { c.attention_scale = 0.125; }, multiplied},
      {"logit_divisor", [](ModelConfig& c) { c.logit_divisor = 8.0; }, multiplied},
      {"window_theta", [](ModelConfig& c) { c.window_theta = 2e4; }, gemma},
      {"logit_cap", [](ModelConfig& c) { c.logit_cap = 30.0; }, gemma},
      {"unrotated",
       [](ModelConfig& c) {
         c.unrotated = {true, false};
       },
       some_unrotated},
      {"unrotated",
       [](ModelConfig& c) {
         c.unrotated = {true, true};
       },
       some_unrotated},
      {"rope.rotary_dim", [](ModelConfig& c) { c.rope.rotary_dim = 4; }, partial},
      {"rope.short_factors", longrope([](RopeConfig& r) { r.short_factors[1] = 1.5f; }), partial},
      {"rope.long_factors", longrope([](RopeConfig& r) { r.long_factors[3] = 9.0f; }), partial},
      {"rope.attention_factor", longrope([](RopeConfig& r) { r.attention_factor = 1.25; }), partial},
      {"experts.shared", [](ModelConfig& c) { c.experts.shared = 24; }, shared},
      {"experts.normalise", [](ModelConfig& c) { c.experts.normalise = false; }, shared},
      {"delta.n_k_heads", [](ModelConfig& c) { c.delta.n_k_heads = 4; }, delta},
      {"delta.n_v_heads", [](ModelConfig& c) { c.delta.n_v_heads = 6; }, delta},
      {"delta.d_k", [](ModelConfig& c) { c.delta.d_k = 16; }, delta},
      {"delta.d_v", [](ModelConfig& c) { c.delta.d_v = 12; }, delta},
      {"delta.taps", [](ModelConfig& c) { c.delta.taps = 3; }, delta},
      {"delta.layers",
       [](ModelConfig& c) {
         c.delta.layers = {false, true};
       },
       delta},
      {"temperature", [](ModelConfig& c) { c.temperature = 0.25, c.temperature_context = 64; }, mistral3},
      {"temperature_context",
       [](ModelConfig& c) {
         yarn([](RopeConfig&) {})(c);
         c.temperature = 0.25, c.temperature_context = 64;
       },
       mistral3},
  };
}

std::vector<Change> changes() {
  std::vector<Change> all = {
      {"name", [](ModelConfig& c) { c.name = "another"; }},
      {"n_layers",
       [](ModelConfig& c) {
         c.n_layers = 3;
         c.windowed = windows_by_layer(c.architecture, 3);
         c.unrotated = unrotated_by_layer(c.architecture, 3);
         if (!c.delta.layers.empty()) c.delta.layers = {true, true, false};
       }},
      {"hidden", [](ModelConfig& c) { c.hidden = 24; }},
      {"ffn", [](ModelConfig& c) { c.ffn = 24; }},
      {"n_heads", [](ModelConfig& c) { c.n_heads = 6; }},
      {"n_kv_heads", [](ModelConfig& c) { c.n_kv_heads = 4; }},
      {"head_dim", [](ModelConfig& c) { c.head_dim = 16; }},
      {"vocab", [](ModelConfig& c) { c.vocab = 20; }},
      {"max_context", [](ModelConfig& c) { c.max_context = 300; }},
      {"max_context", [](ModelConfig& c) { c.max_context = std::int64_t{1} << 31; }},
      {"sliding_window", [](ModelConfig& c) { c.sliding_window = 40; }},
      {"rms_eps", [](ModelConfig& c) { c.rms_eps = 1e-6; }},
      {"tied_embeddings", [](ModelConfig& c) { c.tied_embeddings = true; }},
  };
  for (const auto& more : {changes_of_rope(), changes_of_parts()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(ConfigFields, EachComesThroughConvertInEveryArchitecture) {
  for (const Family& family : families()) {
    const Architecture a = family.architecture;
    EXPECT_EQ(through_convert(base(a)), fields_of(as_gguf(base(a)))) << architecture_name(a);
    for (const Change& change : changes()) {
      if (!change.applies(a)) continue;
      ModelConfig c = base(a);
      change.make(c);
      EXPECT_NE(fields_of(c).at(change.field), fields_of(base(a)).at(change.field)) << "nothing changed";
      EXPECT_EQ(through_convert(c), fields_of(as_gguf(c))) << architecture_name(a) << ", " << change.field;
    }
  }
}

TEST(ConfigFields, EachIsChangedByATest) {
  // These follow from the architecture.
  const std::vector<std::string> kDerived = {"architecture", "qk_norm",        "qk_norm_all", "qk_norm_behind",
                                             "o_bias",       "experts.biases", "sinks",       "plain_windows",
                                             "norms",        "gate",           "output_gate", "delta.tiled"};
  for (const auto& [field, value] : fields_of({})) {
    const std::vector<Change> all = changes();
    const bool changed = std::any_of(all.begin(), all.end(), [&](const Change& c) { return field == c.field; });
    EXPECT_TRUE(changed || std::find(kDerived.begin(), kDerived.end(), field) != kDerived.end()) << field;
  }
}

}  // namespace
}  // namespace mneme::test

// mneme inspect FILE: what is in a checkpoint.
#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/mneme/commands.h"
#include "apps/mneme/model_source.h"
#include "mneme/error.h"
#include "src/base/ascii.h"
#include "src/base/mapped_file.h"
#include "src/formats/checkpoint.h"
#include "src/formats/gguf/gguf_file.h"
#include "src/formats/gguf/gguf_model.h"
#include "src/model/shapes.h"
#include "src/text/answer/find_format.h"
#include "src/text/chat/chat_format.h"

namespace mneme::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InspectOptions {
  ModelSource model;
  bool json = false;
  bool tensors = false;
};

std::string_view kind_name(TokenizerKind kind) {
  return kind == TokenizerKind::kByteBpe ? "byte-level BPE" : "SentencePiece BPE";
}

std::string_view scaling_name(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kLlama3:
      return "llama3";
    case RopeScaling::kYarn:
      return "yarn";
    case RopeScaling::kDynamic:
      return "dynamic";
    case RopeScaling::kLongRope:
      return "longrope";
  }
  return "";
}

template <typename T>
Json or_null(const std::optional<T>& v) {
  return v ? Json(*v) : Json();
}

// 1e-05 as a file of f32 values has it, not as the nearest double spells it.
double spelled(double value) {
  const auto single = static_cast<float>(value);
  return single == value ? std::stod(fmt::format("{}", single)) : value;
}

Json describe_rope(const RopeConfig& r) {
  Json out = {{"base", r.theta},
              {"pairs", r.pairs == RopePairs::kHalves ? "halves" : "neighbours"},
              {"scaling", scaling_name(r.scaling)},
              {"frequency_factors", !r.freq_factors.empty()}};
  if (r.rotary_dim != 0) out["rotates"] = r.rotary_dim;
  if (r.scaling == RopeScaling::kNone) return out;
  out["factor"] = r.factor;
  if (r.scaling == RopeScaling::kLongRope) out["scale"] = spelled(r.attention_factor);
  if (r.scaling != RopeScaling::kLinear) out["original_context"] = r.original_context;
  return out;
}

// What layers have that is not the same for all, or not there in most models.
void add_kinds(const ModelConfig& c, Json& out) {
  const auto layers = [&](const char* name, const std::vector<bool>& flags) {
    if (flags.empty()) return;
    out[name] = Json::array();
    for (std::size_t l = 0; l < flags.size(); ++l)
      if (flags[l]) out[name].push_back(l);
  };
  layers("layers_with_window", c.windowed);
  layers("layers_without_rope", c.unrotated);
  layers("layers_with_state", c.delta.layers);
  if (c.n_state_layers() > 0) out["state_bytes_per_sequence"] = kv_shape_of(c, DType::kBF16).state_bytes;
  if (c.embedding_scale != 1.0) out["embedding_scale"] = spelled(c.embedding_scale);
  if (c.residual_scale != 1.0) out["residual_scale"] = spelled(c.residual_scale);
  if (c.attention_scale != 0.0) out["attention_scale"] = spelled(c.attention_scale);
  if (c.logit_divisor != 1.0) out["logit_divisor"] = spelled(c.logit_divisor);
  if (c.logit_cap != 0.0) out["logit_cap"] = spelled(c.logit_cap);
  if (c.window_theta != 0.0) out["rope_base_of_windows"] = spelled(c.window_theta);
}

Json describe_experts(const ExpertConfig& e) {
  if (e.n == 0) return nullptr;
  return {{"count", e.n}, {"used", e.n_used}, {"feed_forward", e.ffn}};
}

Json describe_config(const ModelConfig& c) {
  Json out = {{"name", c.name},
              {"architecture", architecture_name(c.architecture)},
              {"layers", c.n_layers},
              {"hidden", c.hidden},
              {"feed_forward", c.ffn},
              {"experts", describe_experts(c.experts)},
              {"query_heads", c.n_heads},
              {"kv_heads", c.n_kv_heads},
              {"head_dim", c.head_dim},
              {"vocabulary", c.vocab},
              {"context", c.max_context},
              {"sliding_window", c.sliding_window},
              {"rms_epsilon", spelled(c.rms_eps)},
              {"tied_embeddings", c.tied_embeddings},
              {"qkv_bias", c.qkv_bias},
              {"qk_norm", c.qk_norm},
              {"rope", describe_rope(c.rope)},
              // Keys and values of every layer that has them, in 16 bits.
              {"kv_bytes_per_token", 2 * 2 * c.n_kv_layers() * c.n_kv_heads * c.head_dim}};
  add_kinds(c, out);
  return out;
}

// "default", and further ones by name.
Json template_names(const TokenizerData& t) {
  Json names = Json::array();
  if (!t.chat_template.empty()) names.push_back("default");
  for (const auto& [name, source] : t.named_templates) names.push_back(name);
  return names;
}

Json describe_tokenizer(const TokenizerData& t) {
  return {
      {"kind", kind_name(t.kind)},
      {"pre_tokenizer", t.pre_patterns.empty() ? t.pre : fmt::format("{} patterns of its own", t.pre_patterns.size())},
      {"tokens", t.tokens.size()},
      {"merges", t.merges.size()},
      {"bos", or_null(t.bos)},
      {"eos", or_null(t.eos)},
      {"eot", or_null(t.eot)},
      {"further_ends", t.eog},
      {"adds_bos", t.add_bos},
      {"chat_template", !t.chat_template.empty()},
      {"chat_templates", template_names(t)}};
}

// How the model writes thoughts and calls, for its default template.
Json describe_answers(const TokenizerData& data) {
  try {
    const auto tokenizer = Tokenizer::make(data);
    const ChatFormat chat = ChatFormat::detect(*tokenizer);
    const FoundFormat found = find_answer_format("", chat.chat_template(), *tokenizer);
    return {{"found", found.how}, {"format", json_of(found.format)}};
  } catch (const Error& e) {
    return {{"found", "none"}, {"problem", e.what()}};
  }
}

void describe_tensors(const Checkpoint& checkpoint, bool list, Json& out) {
  std::int64_t parameters = 0;
  std::map<std::string, std::uint64_t> bytes_by_type;
  Json all = Json::array();
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    const std::string type(dtype_name(t.view.dtype()));
    const std::int64_t row = t.view.rank() == 1 ? t.view.dim(0) : t.view.row_elements();
    const std::uint64_t bytes = (t.view.n_elements() / row) * row_bytes(t.view.dtype(), row);
    parameters += t.view.n_elements();
    bytes_by_type[type] += bytes;
    Json shape = Json::array();
    for (int i = 0; i < t.view.rank(); ++i) shape.push_back(t.view.dim(i));
    if (list) all.push_back({{"name", t.name}, {"type", type}, {"shape", shape}, {"bytes", bytes}});
  }
  out["parameters"] = parameters;
  out["tensor_count"] = checkpoint.tensors().size();
  out["bytes_by_type"] = bytes_by_type;
  if (list) out["tensors"] = all;
}

Json describe_metadata(const std::vector<MetadataEntry>& entries) {
  Json out = Json::array();
  for (const MetadataEntry& e : entries) out.push_back({{"key", e.key}, {"type", e.type}, {"value", e.value}});
  return out;
}

Json describe(const std::string& path, bool tensors) {
  Json out = {{"file", path}};
  if (!std::filesystem::is_directory(path)) {
    const MappedFile mapping(path);
    const auto bytes = mapping.bytes();
    const bool gguf = bytes.size() >= 4 && std::string_view(reinterpret_cast<const char*>(bytes.data()), 4) == "GGUF";
    if (gguf) {
      const GgufFile file = GgufFile::parse(bytes, path, GgufFile::Tensors::kSkip);
      if (file.tensor_count() == 0 && !file.split()) {
        out["format"] = fmt::format("GGUF v{}, vocabulary only", file.version());
        out["tokenizer"] = describe_tokenizer(read_gguf_tokenizer(file));
        out["answers"] = describe_answers(read_gguf_tokenizer(file));
        out["metadata"] = describe_metadata(file.describe());
        return out;
      }
    }
  }
  const auto checkpoint = Checkpoint::open(path);
  out["format"] = checkpoint->format();
  out["model"] = describe_config(checkpoint->config());
  out["tokenizer"] = describe_tokenizer(checkpoint->tokenizer());
  out["answers"] = describe_answers(checkpoint->tokenizer());
  describe_tensors(*checkpoint, tensors, out);
  out["metadata"] = describe_metadata(checkpoint->metadata());
  return out;
}

// One line, control characters as \n and the like.
std::string shown(const Json& value) {
  if (!value.is_string()) return value.is_null() ? "none" : value.dump();
  std::string out;
  for (const char c : value.get<std::string>()) {
    if (byte_of(c) < 0x20)
      out += c == '\n' ? "\\n" : fmt::format("\\x{:02x}", byte_of(c));
    else
      out += c;
  }
  return out;
}

void print_section(std::string_view title, const Json& members) {
  fmt::print("\n{}\n", title);
  for (const auto& [key, value] : members.items()) {
    if (!value.is_object()) {
      fmt::print("  {:<20} {}\n", key, shown(value));
      continue;
    }
    for (const auto& [inner, v] : value.items())
      fmt::print("  {:<20} {}\n", fmt::format("{}.{}", key, inner), shown(v));
  }
}

void print_text(const Json& all) {
  fmt::print("{}\n  {:<20} {}\n", all["file"].get<std::string>(), "format", all["format"].get<std::string>());
  if (all.contains("model")) print_section("model", all["model"]);
  print_section("tokenizer", all["tokenizer"]);
  print_section("answers", all["answers"]);
  if (all.contains("parameters"))
    print_section(
        "tensors",
        Json{{"count", all["tensor_count"]}, {"parameters", all["parameters"]}, {"bytes", all["bytes_by_type"]}});
  if (all.contains("tensors"))
    for (const Json& t : all["tensors"])
      fmt::print("  {:<32} {:<5} {:<18} {:>12} bytes\n", t["name"].get<std::string>(), t["type"].get<std::string>(),
                 t["shape"].dump(), t["bytes"].get<std::uint64_t>());
  fmt::print("\nmetadata\n");
  for (const Json& e : all["metadata"])
    fmt::print("  {:<44} {:<16} {}\n", e["key"].get<std::string>(), e["type"].get<std::string>(), shown(e["value"]));
}

int inspect(const InspectOptions& options) {
  expect_model(options.model, "file");
  const Json all = describe(model_file(options.model, true), options.tensors);
  if (options.json)
    fmt::print("{}\n", all.dump(2));
  else
    print_text(all);
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, int& code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "Show what a checkpoint holds: model, tokenizer, tensors, metadata");
  command->add_option("file,-m,--model", options->model.path, "GGUF file or Hugging Face folder");
  add_hf_option(*command, options->model);
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  command->add_flag("--tensors", options->tensors, "List every tensor: name, type, shape, bytes");
  command->callback([options, &code] { code = inspect(*options); });
}

}  // namespace mneme::cli

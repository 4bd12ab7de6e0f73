#include "apps/mneme/measured/bench_model.h"

#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "apps/bench/shapes.h"
#include "apps/bench/step_cost.h"
#include "apps/mneme/options.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/formats/model_name.h"
#include "src/formats/weight_names.h"
#include "src/model/ranks/rank_checkpoint.h"
#include "src/model/shapes.h"

namespace mneme::cli {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr std::string_view kQ4KM = "q4_k_m";

DType weights_type(const std::string& name) {
  for (const DType type :
       {DType::kBF16,  DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,   DType::kQ5_1,   DType::kQ2_K,
        DType::kQ3_K,  DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4,
        DType::kNVFP4, DType::kFp8,  DType::kInt4, DType::kInt8, DType::kF32,    DType::kF16})
    if (dtype_name(type) == name) return type;
  fail(ErrorKind::kOption, "--weights: there is no type \"{}\"", name);
}

void expect_one(const BenchModelOptions& o) {
  if (o.model.given() == !o.shape.empty())
    fail(ErrorKind::kOption, "a model is needed: -m MODEL (or -hf OWNER/NAME), or --shape NAME (one of the two)");
}

std::int64_t bytes_of(const ConstTensorView& view) {
  const std::int64_t row = view.rank() == 1 ? view.dim(0) : view.row_elements();
  return view.n_elements() / row * row_bytes(view.dtype(), row);
}

// Of the experts that a row is not sent to.
std::int64_t idle_bytes(const Checkpoint& file) {
  const ExpertConfig& experts = file.config().experts;
  if (experts.n == 0) return 0;
  std::unordered_map<std::string_view, const CheckpointTensor*> by_name;
  for (const CheckpointTensor& t : file.tensors()) by_name.emplace(t.name, &t);
  const auto find = [&](const std::string& name) {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : it->second;
  };
  std::int64_t all = 0;
  for_each_weight(file.config(), [&](const WeightSpec& w) {
    for (std::int64_t e = 0; e < w.n_experts; ++e) all += bytes_of(expert_of(find, w, e).view);
  });
  return all / experts.n * (experts.n - experts.n_used);
}

BenchShape shape_of_file(const std::string& path) {
  const std::unique_ptr<Checkpoint> file = Checkpoint::open(path);
  BenchShape shape{.config = file->config()};
  for (const CheckpointTensor& t : file->tensors()) shape.weight_bytes += bytes_of(t.view);
  shape.step_weight_bytes = shape.weight_bytes - idle_bytes(*file);
  const CheckpointTensor* embedding = file->find("token_embd.weight");
  if (embedding != nullptr && !shape.config.tied_embeddings) shape.step_weight_bytes -= bytes_of(embedding->view);
  const CheckpointTensor* gate = file->find("blk.0.ffn_gate.weight");
  if (gate != nullptr) shape.weights = gate->view.dtype();
  return shape;
}

}  // namespace

void add_bench_model_options(CLI::App& c, BenchModelOptions& o) {
  c.add_option("-m,--model", o.model.path, "GGUF file or Hugging Face folder")->type_name("PATH")->group("Model");
  add_hf_option(c, o.model)->group("Model");
  c.add_option("--shape", o.shape, "Known model shape with random weights: llama-3.2-1b, ... (docs/guide/measure.md)")
      ->type_name("NAME")
      ->group("Model");
  c.add_option("--weights", o.weights,
               "Type of a shape's weights: bf16, f16, f32, or quantised (q8_0, q4_k, ...: the types of mneme convert); "
               "with --device cuda also iq4_xs, nvfp4, fp8, int4, int8, and the mixture q4_k_m")
      ->type_name("TYPE")
      ->capture_default_str()
      ->check(one_of({"bf16",   "q8_0",  "q4_0",  "q4_1",   "q5_0",   "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
                      "iq4_nl", "mxfp4", "nvfp4", "q4_k_m", "iq4_xs", "fp8",  "int4", "int8", "f16",  "f32"}))
      ->group("Model");
}

WeightMix bench_weight_mix(const BenchModelOptions& o) {
  return o.weights == kQ4KM ? WeightMix::q4_k_m() : WeightMix::all(weights_type(o.weights));
}

std::unique_ptr<Model> load_bench_model(const BenchModelOptions& o, std::int64_t context, const CpuContext& cpu,
                                        const ProgressFn& progress, ShapeWeights weights, const Collective* ranks) {
  expect_one(o);
  const ModelOptions options{.context = context};
  const auto shape = [&] {
    ModelConfig whole = bench_shape(o.shape);
    if (ranks == nullptr) return whole;
    if (whole.experts.n > 0 && ranks->size() > 1 && weights != ShapeWeights::kNone)  // drawn by the device alone
      fail(ErrorKind::kUnsupported, "--shape {} over {} ranks: expected --device cuda, a dense shape, or -m", o.shape,
           ranks->size());
    return rank_config(std::move(whole), ranks->size());
  };
  if (!o.shape.empty() && weights == ShapeWeights::kNone) return Model::shape_only(shape(), options);
  if (!o.shape.empty()) {
    if (o.weights == kQ4KM || !can_quantise_to(weights_type(o.weights)))
      fail(ErrorKind::kOption, "--weights {}: such weights are drawn with --device cuda only", o.weights);
    return Model::random(shape(), weights_type(o.weights), options, kSeed, cpu);
  }
  auto checkpoint = Checkpoint::open(model_file(o.model, true));
  if (ranks != nullptr) checkpoint = rank_checkpoint(std::move(checkpoint), ranks->rank(), ranks->size());
  return Model::load(std::move(checkpoint), options, cpu, progress);
}

BenchShape read_bench_shape(const BenchModelOptions& o) {
  expect_one(o);
  if (o.shape.empty()) return shape_of_file(model_file(o.model, true));
  BenchShape shape{.config = bench_shape(o.shape), .weights = bench_weight_mix(o).most};
  const DTypeInfo& type = dtype_info(shape.weights);
  // Norms and biases are f32, and so few that they do not matter here.
  const auto bytes = [&type](std::int64_t n) { return n * type.bytes / type.block; };
  shape.weight_bytes = bytes(parameter_count(shape.config));
  shape.step_weight_bytes =
      shape.weight_bytes - (shape.config.tied_embeddings ? 0 : bytes(shape.config.vocab * shape.config.hidden));
  return shape;
}

std::string bench_model_name(const BenchModelOptions& o) {
  if (!o.shape.empty()) return o.shape + " " + o.weights;
  return o.model.repo.empty() ? model_name(o.model.path) : o.model.repo;
}

MethodShape bench_method_shape(const ModelConfig& c, DType kv_dtype) {
  return method_shape_of(c, kv_dtype);
}

}  // namespace mneme::cli

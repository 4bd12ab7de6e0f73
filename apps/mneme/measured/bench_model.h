// The benchmarked model: a file, or a shape with random weights.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "apps/mneme/model_source.h"
#include "src/model/model.h"
#include "src/model/weight_mix.h"
#include "src/recipes/compile.h"

namespace mneme::cli {

struct BenchModelOptions {
  ModelSource model;
  std::string shape;
  std::string weights = "bf16";  // of a shape

  bool given() const { return model.given() || !shape.empty(); }
};

// -m or -hf, --shape and --weights. Either a model or a shape must be given.
void add_bench_model_options(CLI::App& command, BenchModelOptions& options);

// The types of a shape's weights. Errors  kOption: there is no such type.
WeightMix bench_weight_mix(const BenchModelOptions& options);

// Of a shape: with weights in host memory, or without (they are made on the device).
enum class ShapeWeights { kHere, kNone };
// ranks: those that share the model; null: all of it.
//
// Errors  kOption: neither or both. As Model::load.
std::unique_ptr<Model> load_bench_model(const BenchModelOptions& options, std::int64_t context, const CpuContext& cpu,
                                        const ProgressFn& progress, ShapeWeights weights = ShapeWeights::kHere,
                                        const Collective* ranks = nullptr);
// The shape alone, without weights. Bytes of the weights, and of those that a step of one row reads.
struct BenchShape {
  ModelConfig config;
  std::int64_t weight_bytes = 0, step_weight_bytes = 0;
  DType weights = DType::kBF16;  // of the layers' matrices
};
BenchShape read_bench_shape(const BenchModelOptions& options);

// The shape that methods need.
MethodShape bench_method_shape(const ModelConfig& config, DType kv_dtype);

// "models/needle-27m-q8_0.gguf" as "needle-27m-q8_0"; a shape's name and type.
std::string bench_model_name(const BenchModelOptions& options);

}  // namespace mneme::cli

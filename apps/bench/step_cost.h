// Lower bounds of the bytes and operations of a forward pass, and the time that follows from them.
#pragma once

#include <cstdint>

#include "src/model/model.h"
#include "src/model/weight_placement.h"

namespace mneme {

struct StepCost {
  double weights = 0;     // bytes read, once per step for all rows
  double kv_read = 0;     // bytes of exact keys and values
  double kv_written = 0;  // bytes
  double index_read = 0;  // bytes of a method's index
  double operations = 0;  // of GEMMs and attention; two per multiply-add

  double bytes() const { return weights + kv_read + kv_written + index_read; }
  StepCost& operator+=(const StepCost& other);
  StepCost scaled(double factor) const;
};

// Of one model, as its weights are stored.
struct WeightBytes {
  double step = 0;  // read by a step of one row: one row of the embedding, all other weights
  double embedding_row = 0;
  double head = 0;
  double experts = 0;  // of `step`: the experts of one row, where the model is a mixture
};
WeightBytes weight_bytes_of(const Model& model);

// Rows [first, first + n_rows) of each of `batch` sequences in one pass, all attending everything before them.
// `logits`: of the last row of each.
StepCost dense_cost(const Model& model, const KvShape& kv, std::int64_t first, std::int64_t n_rows, std::int64_t batch,
                    bool logits);
StepCost dense_cost(const ModelConfig& config, const WeightBytes& weights, const KvShape& kv, std::int64_t first,
                    std::int64_t n_rows, std::int64_t batch, bool logits);

// Lower bound in seconds. rate 0: operations are ignored.
double floor_seconds(const StepCost& cost, double bytes_per_second, double operations_per_second);

// Parameters of a shape: matrices, norms and biases.
std::int64_t parameter_count(const ModelConfig& config);

}  // namespace mneme

// A rank's share of a checkpoint: what Model::load reads of it is a model with fewer heads and a narrower feed-forward
// layer, or one where some experts have no weights.
//
//   q, k, v, gate, up   rows: whole KV heads with their query heads     views of the file
//   o, down             columns, whole blocks of quantised types        copied
//   sinks               of the query heads                              views
//   experts             whole ones: rank_experts(), as single tensors   views
//   all else            as it is (biases of o: rank 0 adds them)
#pragma once

#include <memory>

#include "src/formats/checkpoint.h"
#include "src/parallel/collective.h"

namespace mneme {

// The shape of a rank's part. Errors  as rank_checkpoint().
ModelConfig rank_config(ModelConfig whole, int size);

// Errors  kOption: KV heads, feed-forward width or blocks of quantised weights that `size` does not divide; more ranks
//         than experts. kUnsupported: matrices with reordered columns.
std::unique_ptr<Checkpoint> rank_checkpoint(std::unique_ptr<Checkpoint> whole, int rank, int size);

// The layers [layers.first, layers.end) of `whole`, as a model of its own; embedding, norm and head stay.
RankRange stage_layers(std::int64_t n_layers, int stage, int n_stages);
ModelConfig stage_config(ModelConfig whole, int stage, int n_stages);
// Errors  kOption: fewer layers than stages.
std::unique_ptr<Checkpoint> stage_checkpoint(std::unique_ptr<Checkpoint> whole, int stage, int n_stages);

}  // namespace mneme

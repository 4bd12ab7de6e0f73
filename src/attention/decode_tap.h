// A look at every row that decodes, between its attention and the moment its method moves on to the next step: what
// evaluation measures beside a run.
#pragma once

#include <cstdint>

#include "src/kernels/attention.h"

namespace mneme {

struct DecodeRow;

class DecodeTap {
 public:
  virtual ~DecodeTap() = default;

  // One (layer, row), layers in order, on the thread that runs the step. The row's method, if it has one, still holds
  // the query and the selection that this step began with.
  virtual void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) = 0;
};

}  // namespace mneme

// Observer of decode rows, called between a row's attention and its method's transition to the next step; used by
// evaluation and calibration.
#pragma once

#include <cstdint>

#include "src/ops/attention/attention.h"

namespace mneme {

struct DecodeRow;

class DecodeObserver {
 public:
  virtual ~DecodeObserver() = default;

  // Called for one (layer, row), layers in order, on the thread that runs the step. The row's method, if any, still has
  // the query and selection of the start of this step.
  virtual void see(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape) = 0;
};

}  // namespace mneme

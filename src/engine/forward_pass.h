// What the engine asks of a model. Tests give it one whose next token is a pure function of what the pages hold.
#pragma once

#include <cstdint>

#include "src/model/model.h"

namespace mneme {

class ForwardPass {
 public:
  virtual ~ForwardPass() = default;

  virtual KvShape kv_shape(DType kv_dtype) const = 0;
  virtual std::int64_t vocab() const = 0;
  virtual std::int64_t max_context() const = 0;
  virtual std::size_t weight_bytes() const { return 0; }
  // As Forward::run. May throw; then nothing of this step counts.
  virtual ConstTensorView run(const ForwardInput& input) = 0;
  // As Forward::set_tap; what has no attention shows nothing.
  virtual void set_tap(DecodeTap*) {}
  // The model behind it, where there is one.
  virtual const Model* model() const { return nullptr; }
};

}  // namespace mneme

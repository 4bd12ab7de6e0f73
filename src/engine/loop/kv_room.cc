#include "src/engine/loop/kv_room.h"

#include <algorithm>

#include "src/engine/kv_plan.h"
#include "src/engine/memory_limit.h"
#include "src/model/shapes.h"

namespace mneme {
namespace {

std::int64_t bytes_of(const Checkpoint& checkpoint) {
  std::int64_t bytes = 0;
  for (const CheckpointTensor& t : checkpoint.tensors())
    bytes += t.view.stride_bytes() * (t.view.rank() == 1 ? 1 : t.view.dim(0));
  return bytes;
}

}  // namespace

std::int64_t default_kv_bytes(const Checkpoint& checkpoint, const EngineOptions& options) {
  const ModelConfig& c = checkpoint.config();
  const KvShape shape = kv_shape_of(c, kv_dtype_of(options));
  const std::int64_t context = options.context > 0 ? options.context : c.max_context;
  const std::int64_t page_bytes = shape.page_bytes();
  const std::int64_t one = blocks_of(shape, context + kPageTokens) * page_bytes;
  const std::int64_t half = (memory_limit_bytes() - bytes_of(checkpoint)) / 2;
  return half < one ? 0 : std::min(one * options.max_sequences, half);
}

}  // namespace mneme

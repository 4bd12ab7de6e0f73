#include "src/engine/kv_residency.h"

#include <algorithm>
#include <cmath>

#include "src/base/ratio.h"
#include "src/engine/kv_plan.h"

namespace mneme {

std::int64_t wanted_kv_bytes(const KvShape& shape, const EngineOptions& options, std::int64_t context,
                             KvWindows windows) {
  windows.step_tokens = std::max(options.max_batched_tokens, 1);
  const std::int64_t page_bytes = shape.page_bytes();
  return options.kv_memory_bytes > 0 ? options.kv_memory_bytes : blocks_of(shape, windows, context) * page_bytes;
}

std::int64_t wanted_index_bytes(const Plan& plan, std::int64_t context, int sequences) {
  if (!plan.selects()) return 0;
  const std::int64_t heads =
      std::int64_t{plan.shape.n_layers} * (plan.by_query_head() ? plan.shape.n_heads : plan.shape.n_kv_heads);
  const auto tokens_of_heads = real(context * sequences * heads);
  return std::llround(1.25 * plan.index_bytes_per_token() * tokens_of_heads);
}

}  // namespace mneme

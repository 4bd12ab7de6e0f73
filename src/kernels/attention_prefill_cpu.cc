// Prefill attention on a CPU.
#include "src/kernels/attention.h"

namespace mneme {

void attend_prefill_cpu(std::span<const PrefillHead> heads, const AttentionShape& shape, const CpuContext& context) {
  context.pool->parallel_for(
      static_cast<std::int64_t>(heads.size()), 1, [&](std::int64_t begin, std::int64_t end, int /*worker*/) {
        attend_prefill_ref(heads.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
                           shape);
      });
}

}  // namespace mneme

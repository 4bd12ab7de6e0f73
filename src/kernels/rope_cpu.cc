#include "src/kernels/rope.h"

namespace mneme {

void rope_cpu(const TensorView& x, std::span<const std::int32_t> positions, const RopeTable& table, const CpuContext&) {
  rope_ref(x, positions, table);
}

}  // namespace mneme

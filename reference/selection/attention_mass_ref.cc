// Specification of attention mass: every probability in f64, token by token.
#include <cmath>
#include <vector>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/selection/mass/attention_mass.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

double key(const std::byte* token, std::int32_t d, DType dtype) {
  const auto* p = token + std::size_t{2} * d;
  if (dtype == DType::kBF16) return *reinterpret_cast<const bf16*>(p);
  return *reinterpret_cast<const f16*>(p);
}

}  // namespace

void attention_mass_ref(std::span<const MassHead> heads, const AttentionShape& shape, MassBy by) {
  for (const MassHead& head : heads) {
    std::vector<const std::byte*> tokens;
    for (const KvRun& run : head.runs)
      for (std::int32_t r = 0; r < run.n_tokens; ++r) tokens.push_back(run.kv + r * shape.token_bytes());
    const auto m = size32(tokens);
    MNEME_CHECK(m >= head.n_rows, "{} rows see themselves among {} tokens", head.n_rows, m);
    for (std::int32_t t = 0; t < m; ++t) {
      double sum = 0;
      for (std::int32_t g = 0; g < shape.group; ++g) {
        if (by == MassBy::kQueryHead) sum = 0;
        for (std::int32_t i = 0; i < head.n_rows; ++i) {
          const std::int32_t seen = m - head.n_rows + 1 + i;
          if (t >= seen || (head.window > 0 && t < seen - head.window)) continue;
          double score = 0;
          for (std::int32_t d = 0; d < shape.head_dim; ++d)
            score += head.q[i * head.q_stride + g * shape.head_dim + d] * key(tokens[t], d, shape.kv_dtype);
          sum += std::exp(score * shape.scale - head.lse[i * head.lse_stride + g]);
        }
        if (by == MassBy::kQueryHead) {
          float& mass = head.mass[g * head.mass_stride + t];
          mass = static_cast<float>(mass + sum);
        }
      }
      if (by == MassBy::kGroup) head.mass[t] = static_cast<float>(head.mass[t] + sum);
    }
  }
}

}  // namespace mneme

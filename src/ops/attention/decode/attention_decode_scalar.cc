// Decode attention over one KV split, token by token.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/kv/kv_quant.h"
#include "src/ops/attention/decode/attention_decode_kernel.h"

namespace mneme {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

void attend_token(const float* q, const std::byte* token, float bias, const AttentionShape& shape, float* top,
                  float* sum, float* out) {
  float score = 0;
  for (std::int32_t d = 0; d < shape.head_dim; ++d) score += q[d] * load_kv(token, d, shape.kv_dtype, shape.head_dim);
  score = (score * shape.scale + bias) * kLog2e;
  const float high = score > *top ? score : *top;
  const float base = high == kMinusInf ? 0.0f : high;
  const float factor = std::exp2(*top - base);
  const float p = std::exp2(score - base);
  *top = high;
  *sum = *sum * factor + p;
  for (std::int32_t d = 0; d < shape.head_dim; ++d)
    out[d] = out[d] * factor + p * load_kv(token, shape.head_dim + d, shape.kv_dtype, shape.head_dim);
}

}  // namespace

void attend_range_plain(std::span<const DecodePart> parts, const DecodeCursor& begin, std::int64_t n_tokens,
                        const AttentionShape& shape, const DecodePartial& partial) {
  std::fill_n(partial.top, shape.group, kMinusInf);
  std::fill_n(partial.sum, shape.group, 0.0f);
  std::fill_n(partial.out, shape.group * shape.head_dim, 0.0f);
  DecodeCursor at = begin;
  while (n_tokens > 0) {
    const DecodePart& part = parts[at.part];
    if (at.run == std::ssize(part.runs)) {
      at = {at.part + 1, 0, 0, 0};
      continue;
    }
    const KvRun& run = part.runs[at.run];
    if (at.offset == run.n_tokens) {
      ++at.run;
      at.offset = 0;
      continue;
    }
    const std::byte* token = run.kv + at.offset * shape.token_bytes();
    const float bias = part.log_weight == nullptr ? 0.0f : part.log_weight[at.token];
    for (std::int32_t g = 0; g < shape.group; ++g)
      attend_token(part.q + g * shape.head_dim, token, bias, shape, partial.top + g, partial.sum + g,
                   partial.out + g * shape.head_dim);
    ++at.offset;
    ++at.token;
    --n_tokens;
  }
}

}  // namespace mneme

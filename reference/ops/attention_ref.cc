// Specification of attention: two passes over the entries in f64, no tiles.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/kv/kv_quant.h"
#include "src/ops/attention/attention.h"

namespace mneme {
namespace {

constexpr double kMinusInf = -std::numeric_limits<double>::infinity();

// Entries of one (row, query head): scores and [K | V] pairs.
struct Entries {
  std::vector<double> scores;
  std::vector<const std::byte*> tokens;
};

// Appends tokens first..last-1 of `runs`.
void append(Entries& e, const float* q, std::span<const KvRun> runs, std::int64_t first, std::int64_t last,
            const float* log_weight, const AttentionShape& shape) {
  std::int64_t t = 0;
  for (const KvRun& run : runs) {
    for (std::int32_t r = 0; r < run.n_tokens; ++r, ++t) {
      if (t < first || t >= last) continue;
      const std::byte* token = run.kv + r * shape.token_bytes();
      double s = 0;
      for (std::int32_t d = 0; d < shape.head_dim; ++d)
        s += q[d] * static_cast<double>(load_kv(token, d, shape.kv_dtype, shape.head_dim));
      s *= shape.scale;
      if (log_weight != nullptr) s += log_weight[t];
      e.scores.push_back(s);
      e.tokens.push_back(token);
    }
  }
}

// out [D], lse: softmax-weighted sum of the values; sink: null, or one more logit.
void finish(const Entries& e, const AttentionShape& shape, const float* sink, double* out, double* lse) {
  const std::size_t d_head = shape.head_dim;
  std::fill(out, out + d_head, 0.0);
  *lse = kMinusInf;
  double top = kMinusInf;
  for (const double s : e.scores) top = s > top || std::isnan(s) ? s : top;
  if (sink != nullptr && !(top >= *sink) && !std::isnan(top)) top = *sink;
  if (top == kMinusInf) return;  // no entries, or none with nonzero weight
  double sum = 0;
  for (std::size_t i = 0; i < e.scores.size(); ++i) {
    const double p = std::exp(e.scores[i] - top);
    sum += p;
    for (std::int32_t d = 0; d < shape.head_dim; ++d)
      out[d] += p * static_cast<double>(load_kv(e.tokens[i], shape.head_dim + d, shape.kv_dtype, shape.head_dim));
  }
  if (sink != nullptr) sum += std::exp(*sink - top);
  for (std::size_t d = 0; d < d_head; ++d) out[d] /= sum;
  *lse = top + std::log(sum);
}

std::int64_t count(std::span<const KvRun> runs) {
  std::int64_t n = 0;
  for (const KvRun& run : runs) n += run.n_tokens;
  return n;
}

void store(std::byte* p, std::int64_t i, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(p + i * 4, &value, 4);
  } else {
    const bf16 b(value);
    std::memcpy(p + i * 2, &b.bits, 2);
  }
}

}  // namespace

void attend_decode_ref(std::span<const DecodeHead> heads, const AttentionShape& shape) {
  std::vector<double> out(shape.head_dim);
  for (const DecodeHead& head : heads) {
    for (std::int32_t g = 0; g < shape.group; ++g) {
      Entries e;
      for (const DecodePart& part : head.parts)
        append(e, part.q + g * shape.head_dim, part.runs, 0, count(part.runs), part.log_weight, shape);
      double lse;
      finish(e, shape, head.sinks == nullptr ? nullptr : head.sinks + g, out.data(), &lse);
      std::copy_n(out.begin(), shape.head_dim, head.out + g * shape.head_dim);
      if (head.lse != nullptr) head.lse[g] = static_cast<float>(lse);
    }
  }
}

void attend_prefill_ref(std::span<const PrefillHead> heads, const AttentionShape& shape) {
  std::vector<double> out(shape.head_dim);
  for (const PrefillHead& head : heads) {
    for (std::int32_t i = 0; i < head.n_rows; ++i) {
      for (std::int32_t g = 0; g < shape.group; ++g) {
        Entries e;
        for (const PrefillPart& part : head.parts) {
          const std::int64_t m = count(part.runs);
          const std::int64_t last = part.causal ? m - head.n_rows + 1 + i : m;
          const std::int64_t first = part.causal && part.window > 0 ? std::max<std::int64_t>(0, last - part.window) : 0;
          append(e, part.q + i * part.q_stride + g * shape.head_dim, part.runs, first, last, nullptr, shape);
        }
        double lse;
        finish(e, shape, head.sinks == nullptr ? nullptr : head.sinks + g, out.data(), &lse);
        for (std::int32_t d = 0; d < shape.head_dim; ++d)
          store(head.out, i * head.out_stride + g * shape.head_dim + d, head.out_dtype, static_cast<float>(out[d]));
        if (head.lse != nullptr) head.lse[i * shape.group + g] = static_cast<float>(lse);
      }
    }
  }
}

}  // namespace mneme

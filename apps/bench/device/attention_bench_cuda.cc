#include <cmath>
#include <numeric>
#include <vector>

#include "apps/bench/device/device_bench_cuda.h"
#include "apps/bench/timed/samples.h"
#include "src/base/error.h"
#include "src/cuda/device.h"
#include "src/ops/attention/prefill/prefill_attention_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"

namespace mneme {

AttentionResult measure_attention_cuda(const ModelConfig& config, std::int32_t depth, std::int32_t n_rows,
                                       std::int32_t times) {
  use_device(0);
  const auto heads = static_cast<std::int32_t>(config.n_heads), kv_heads = static_cast<std::int32_t>(config.n_kv_heads),
             dim = static_cast<std::int32_t>(config.head_dim);
  expect_attention_shape_cuda(dim, heads / kv_heads);
  const Stream stream = Stream::make();
  const CudaContext context{.stream = stream.get()};
  const std::int32_t pages = (depth + n_rows + kKvPageTokens - 1) / kKvPageTokens, tokens = pages * kKvPageTokens;
  const std::int64_t n_q = std::int64_t{n_rows} * heads * dim, n_kv = std::int64_t{kv_heads} * tokens * 2 * dim;
  const DeviceBuffer q(static_cast<std::size_t>(n_q) * 2, "queries"), out(q.size(), "what is attended"),
      kv(static_cast<std::size_t>(n_kv) * 2, "keys and values");
  random_kv_cuda(q.data(), n_q, false, 1, context);
  random_kv_cuda(kv.data(), n_kv, false, 2, context);
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(kv_heads * pages));
  std::iota(numbers.begin(), numbers.end(), 0);
  const DeviceBuffer blocks(numbers.size() * sizeof(std::int32_t), "a table of pages");
  copy_bytes(blocks.data(), numbers.data(), blocks.size(), stream);
  const KvTables tables{.base = kv.data(),
                        .blocks = blocks.as<std::int32_t>(),
                        .sequence_stride = std::int64_t{kv_heads} * pages,
                        .max_pages = pages,
                        .n_kv_heads = kv_heads,
                        .head_dim = dim,
                        .f16 = false};
  const PrefillAttentionCuda a{.q = q.data(),
                               .out = out.data(),
                               .first = depth,
                               .n_rows = n_rows,
                               .n_heads = heads,
                               .scale = 1.0f / std::sqrt(static_cast<float>(dim))};
  AttentionResult result;
  PrefillAttention prefill;
  prefill.prepare(tables, tokens, true, false);
  std::vector<double> seconds;
  const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
  for (std::int32_t i = -2; i < times; ++i) {
    begin.record(stream);
    prefill.attend_contiguous(a, tables, kv.data(), tokens, context);
    end.record(stream);
    end.synchronize();
    if (i >= 0) seconds.push_back(end.seconds_since(begin));
  }
  result.seconds = quantiles_of(seconds).median;
  result.library_rows = PrefillAttention::by_library(a, tables);
  result.flops = 2.0 * n_rows * (2.0 * depth + n_rows + 1.0) * heads * dim;
  result.flops_a_second = result.flops / result.seconds;
  return result;
}

}  // namespace mneme

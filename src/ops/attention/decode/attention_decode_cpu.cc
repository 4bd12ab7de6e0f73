// Decode attention on a CPU: heads are cut into KV splits that workers take in order; the worker that finishes a head's
// last split merges them in order.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "src/base/size32.h"
#include "src/ops/attention/attention.h"
#include "src/ops/attention/decode/attention_decode_kernel.h"
#include "src/ops/attention/sink.h"
#include "src/tensor/buffer.h"

namespace mneme {
namespace {

// Tokens per KV split. A split starts with uncached pages: with 1,024 tokens that costs 8 % of the rate, with 2,048 a
// few percent. 2,048 pairs of D = 64 in bf16 are 512 KiB, about 20 us of reading: long compared to taking an item (50
// ns) and merging it, short compared to a whole head.
constexpr std::int64_t kRangeTokens = 2048;
constexpr float kLn2 = 0.693147181f;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

struct Range {
  std::size_t head = 0;
  DecodeCursor begin;
  std::int64_t n_tokens = 0;
};

struct HeadState {
  std::size_t first_range = 0;  // its KV splits are consecutive
  std::int32_t n_ranges = 0;
  std::int32_t left = 0;  // KV splits not yet attended
};

// Working memory of one call, kept by the calling thread so that a decode step allocates nothing.
struct CallScratch {
  std::vector<Range> ranges;
  std::vector<HeadState> heads;
  std::vector<float> partials;  // per KV split: top [G], sum [G], out [G, D]
};

// Cuts a head's entries every kRangeTokens, by its own length alone, so that other heads do not change its bits.
void split_head(std::size_t h, const DecodeHead& head, CallScratch& call) {
  HeadState state{call.ranges.size(), 0, 0};
  std::int64_t room = 0;  // tokens that the open split has room for
  for (std::size_t p = 0; p < head.parts.size(); ++p) {
    const std::span<const KvRun> runs = head.parts[p].runs;
    std::int64_t token = 0;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      std::int32_t offset = 0;
      while (offset < runs[r].n_tokens) {
        if (room == 0) {
          call.ranges.push_back({h, {count32(p), count32(r), offset, token + offset}, 0});
          room = kRangeTokens;
        }
        const std::int32_t take = count32(std::min<std::int64_t>(room, runs[r].n_tokens - offset));
        call.ranges.back().n_tokens += take;
        room -= take;
        offset += take;
      }
      token += runs[r].n_tokens;
    }
  }
  state.n_ranges = count32(call.ranges.size() - state.first_range);
  state.left = state.n_ranges;
  call.heads.push_back(state);
}

DecodePartial partial_at(std::vector<float>& partials, std::size_t range, const AttentionShape& shape) {
  const std::size_t group = shape.group;
  float* p = partials.data() + range * group * (2 + shape.head_dim);
  return {p, p + group, p + 2 * group};
}

// Merges the head's output from its KV splits. No entries, or none with nonzero weight: 0 and -inf.
void merge(const DecodeHead& head, const HeadState& state, const AttentionShape& shape, CallScratch& call) {
  for (std::int32_t g = 0; g < shape.group; ++g) {
    float* out = head.out + g * shape.head_dim;
    std::fill_n(out, shape.head_dim, 0.0f);
    float top = kMinusInf;
    for (std::int32_t i = 0; i < state.n_ranges; ++i)
      top = std::max(top, partial_at(call.partials, state.first_range + i, shape).top[g]);
    const float base = top == kMinusInf ? 0.0f : top;
    float sum = 0;
    for (std::int32_t i = 0; i < state.n_ranges; ++i) {
      const DecodePartial part = partial_at(call.partials, state.first_range + i, shape);
      const float weight = std::exp2(part.top[g] - base);
      const float* from = part.out + g * shape.head_dim;
      sum += weight * part.sum[g];
      for (std::int32_t d = 0; d < shape.head_dim; ++d) out[d] += weight * from[d];
    }
    if (head.sinks != nullptr) {
      const SinkMerge merged = merge_sink(top, sum, head.sinks[g]);
      for (std::int32_t d = 0; d < shape.head_dim; ++d) out[d] *= merged.norm;
      if (head.lse != nullptr) head.lse[g] = merged.lse;
      continue;
    }
    if (sum != 0)  // also taken by NaN
      for (std::int32_t d = 0; d < shape.head_dim; ++d) out[d] /= sum;
    if (head.lse != nullptr) head.lse[g] = sum == 0 ? kMinusInf : (base + std::log2(sum)) * kLn2;
  }
}

}  // namespace

void attend_decode_cpu(std::span<const DecodeHead> heads, const AttentionShape& shape, const CpuContext& context) {
  check_attention_shape(shape);
  static thread_local CallScratch t_call;
  CallScratch& call = t_call;
  call.ranges.clear();
  call.heads.clear();
  for (std::size_t h = 0; h < heads.size(); ++h) split_head(h, heads[h], call);
  const std::int64_t per_range = shape.group * (std::int64_t{2} + shape.head_dim);
  if (call.partials.size() < call.ranges.size() * per_range) call.partials.resize(call.ranges.size() * per_range);
  for (std::size_t h = 0; h < heads.size(); ++h)
    if (call.heads[h].n_ranges == 0) merge(heads[h], call.heads[h], shape, call);

  const std::size_t scratch_bytes = decode_scratch_bytes(shape);
  context.pool->parallel_for(call.ranges.size(), 1, [&](std::int64_t begin, std::int64_t end, int /*worker*/) {
    static thread_local Buffer t_scratch;
    t_scratch.reserve(scratch_bytes);
    for (std::int64_t i = begin; i < end; ++i) {
      const Range& range = call.ranges[i];
      attend_range(heads[range.head].parts, range.begin, range.n_tokens, shape, t_scratch.data(),
                   partial_at(call.partials, i, shape));
      HeadState& state = call.heads[range.head];
      if (std::atomic_ref(state.left).fetch_sub(1, std::memory_order_acq_rel) == 1)
        merge(heads[range.head], state, shape, call);
    }
  });
}

}  // namespace mneme

// One thread block per row, which reads the row several times: it stays in L2, and other rows run on other SMs. A
// cutoff (the k-th largest logit, or where a share of the weight is reached) is found by a histogram over the distance
// from the largest logit, then among the sorted tokens of one bin.
#include "src/cuda/common.cuh"
#include "src/ops/sampling/sample_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kBinsPerNat = 64, kBins = 87 * kBinsPerNat + 1;  // weights end at e^-87
constexpr int kEach = (kBins + kThreads - 1) / kThreads;
constexpr int kList = 4096;  // tokens that are sorted
constexpr int kDigitBits = 11;
constexpr double kShareSlack = 1e-6;  // truncated_distribution.h
constexpr float kUnit = 0x1p40f;      // a weight of 1

struct Shared {
  std::uint64_t sum[kBins], list[kList], of_warp[kWarps];
  std::uint32_t count[kBins];
  std::uint64_t total, reached, cut;
  int bin, in_bin, n_list, token;
};

struct Logits {
  const float* logits;
  int vocab;
  float max, temperature;  // max: 0 where it is infinite
  bool infinite;

  __device__ __forceinline__ float at(int i) const {
    const float v = logits[i];
    if (infinite) return v == INFINITY ? 0.0f : -INFINITY;
    return v == v ? v : -INFINITY;
  }
  __device__ __forceinline__ float weight(float v) const {
    const float x = (v - max) / temperature;
    return x >= -87.0f ? expf(x) : 0.0f;
  }
  __device__ __forceinline__ std::uint64_t units(float v) const {
    return static_cast<std::uint64_t>(weight(v) * kUnit);
  }
  __device__ __forceinline__ int bin(float v) const {
    const float depth = (max - v) / temperature * kBinsPerNat;
    return depth < static_cast<float>(kBins - 1) ? static_cast<int>(depth) : kBins - 1;
  }
};

// Sort key: larger is likelier, by logit, then by the smaller id.
__device__ __forceinline__ std::uint64_t order(float v, int i) {
  const std::uint32_t bits = __float_as_uint(v == 0 ? 0.0f : v), key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(key) << 32 | ~static_cast<std::uint32_t>(i);
}
__device__ __forceinline__ float value_of(std::uint64_t order) {
  const auto key = static_cast<std::uint32_t>(order >> 32);
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Calls f(logit, id) for the whole row.
template <typename F>
__device__ __forceinline__ void for_row(const Logits& row, F&& f) {
#pragma unroll 4
  for (int i = threadIdx.x; i < row.vocab; i += kThreads) f(row.at(i), i);
}

// Exclusive scan of `v` over the thread block; the total goes to s.total.
__device__ __forceinline__ std::uint64_t block_exclusive_scan(Shared& s, std::uint64_t v) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  std::uint64_t up_to = v;
#pragma unroll
  for (int k = 1; k < kWarp; k *= 2) {
    const std::uint64_t other = __shfl_up_sync(~0u, up_to, k);
    if (lane >= k) up_to += other;
  }
  if (lane == kWarp - 1) s.of_warp[warp] = up_to;
  __syncthreads();
  std::uint64_t before = up_to - v;
  for (int w = 0; w < warp; ++w) before += s.of_warp[w];
  if (threadIdx.x == kThreads - 1) s.total = before + v;
  __syncthreads();
  return before;
}

// Finds the first of n bins at which the cumulative s.reached comes to target(total of the bins): s.bin, s.in_bin, and
// s.reached before it.
template <typename Target>
__device__ __forceinline__ std::uint64_t find_bin(Shared& s, int n, Target&& target) {
  const int first = threadIdx.x * kEach;
  std::uint64_t own = 0;
  for (int i = 0; i < kEach; ++i)
    if (first + i < n) own += s.sum[first + i];
  const std::uint64_t reached = s.reached;
  std::uint64_t before = reached + block_exclusive_scan(s, own);
  const std::uint64_t wanted = target(s.total);
  for (int i = 0; i < kEach && first + i < n; ++i) {
    const std::uint64_t after = before + s.sum[first + i];
    if (before < wanted && after >= wanted)
      s.bin = first + i, s.in_bin = static_cast<int>(s.count[first + i]), s.reached = before;
    before = after;
  }
  __syncthreads();
  return wanted;
}

// Sorts s.list[0, n) in descending order; n is a power of two.
__device__ __forceinline__ void sort_list(Shared& s, int n) {
  for (int size = 2; size <= n; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < n / 2; i += kThreads) {
        const int low = i / step * 2 * step + i % step, high = low + step;
        const std::uint64_t a = s.list[low], b = s.list[high];
        if ((a < b) == ((low & size) == 0)) s.list[low] = b, s.list[high] = a;
      }
      __syncthreads();
    }
}

__device__ __forceinline__ void clear_bins(Shared& s, int n) {
  for (int i = threadIdx.x; i < n; i += kThreads) s.sum[i] = 0, s.count[i] = 0;
  __syncthreads();
}
__device__ __forceinline__ void add_to_bin(Shared& s, int bin, std::uint64_t weight) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&s.sum[bin]), static_cast<unsigned long long>(weight));
  atomicAdd(&s.count[bin], 1u);
}

// Tokens from `least` on, in one bin, whose order() begins with `prefix`.
struct Bucket {
  std::uint64_t least;
  int bin;
  std::uint64_t prefix = 0;
  int shift = 64;

  __device__ __forceinline__ bool has(const Logits& row, float v, int i) const {
    const std::uint64_t at = order(v, i);
    return row.bin(v) == bin && at >= least && (shift == 64 || at >> shift == prefix);
  }
};

// Radix selection by the digits of order(), until the bucket's tokens fit s.list: many have nearly equal logits.
template <typename Measure>
__device__ __forceinline__ void narrow(Shared& s, const Logits& row, std::uint64_t wanted, Measure&& measure,
                                       Bucket& bucket) {
  while (s.in_bin > kList) {
    const int next = max(bucket.shift - kDigitBits, 0), digits = 1 << (bucket.shift - next);
    const auto digit = [&](std::uint64_t at) {
      return digits - 1 - static_cast<int>(at >> next & static_cast<std::uint64_t>(digits - 1));
    };
    __syncthreads();
    clear_bins(s, digits);
    for_row(row, [&](float v, int i) {
      if (bucket.has(row, v, i)) add_to_bin(s, digit(order(v, i)), measure(v));
    });
    __syncthreads();
    find_bin(s, digits, [&](std::uint64_t) { return wanted; });
    bucket.prefix = (bucket.shift == 64 ? 0 : bucket.prefix << (bucket.shift - next)) |
                    static_cast<std::uint64_t>(digits - 1 - s.bin);
    bucket.shift = next;
  }
}

// Lists the bucket's tokens in s.list, in descending order; returns their number.
__device__ __forceinline__ int list_bucket(Shared& s, const Logits& row, const Bucket& bucket) {
  for_row(row, [&](float v, int i) {
    if (bucket.has(row, v, i)) s.list[atomicAdd(&s.n_list, 1)] = order(v, i);
  });
  __syncthreads();
  const int n = s.n_list;
  int padded = 1;
  while (padded < n) padded *= 2;
  for (int i = n + threadIdx.x; i < padded; i += kThreads) s.list[i] = 0;
  __syncthreads();
  sort_list(s, padded);
  return n;
}

// The order() in s.list[0, n) at which the sum of `measure`, from s.reached on, reaches `wanted`.
template <typename Measure>
__device__ __forceinline__ std::uint64_t cut_of_list(Shared& s, int n, std::uint64_t wanted, Measure&& measure) {
  constexpr int kOwn = kList / kThreads;
  const int tid = threadIdx.x;
  std::uint64_t own = 0;
  for (int i = 0; i < kOwn; ++i)
    if (tid * kOwn + i < n) own += measure(value_of(s.list[tid * kOwn + i]));
  const std::uint64_t reached = s.reached;
  std::uint64_t before = reached + block_exclusive_scan(s, own);
  for (int i = 0; i < kOwn && tid * kOwn + i < n; ++i) {
    const std::uint64_t at = s.list[tid * kOwn + i], after = before + measure(value_of(at));
    if (before < wanted && after >= wanted) s.cut = at;
    before = after;
  }
  __syncthreads();
  return s.cut;
}

// Among tokens from `least` on, in descending order, finds the one at which the sum of `measure` reaches target(total):
// returns its order().   measure(logit): at least 1 in total
template <typename Measure, typename Target>
__device__ __forceinline__ std::uint64_t find_cut(Shared& s, const Logits& row, std::uint64_t least, Measure&& measure,
                                                  Target&& target) {
  if (threadIdx.x == 0) s.reached = 0, s.n_list = 0;
  clear_bins(s, kBins);
  for_row(row, [&](float v, int i) {
    if (order(v, i) >= least) add_to_bin(s, row.bin(v), measure(v));
  });
  __syncthreads();
  const std::uint64_t wanted = find_bin(s, kBins, target);
  Bucket bucket{.least = least, .bin = s.bin};
  narrow(s, row, wanted, measure, bucket);
  const int n = list_bucket(s, row, bucket);
  return cut_of_list(s, n, wanted, measure);
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, const SamplingRule* rules, int vocab, std::int32_t* token, float* logprob) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  grid_dependency_wait();
  const SamplingRule rule = rules[blockIdx.x];
  if (!(rule.temperature > 0)) return;
  const int best = token[blockIdx.x], tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const float best_logprob = logprob[blockIdx.x];
  if (best_logprob == -INFINITY) return;
  Logits row{logits + static_cast<std::int64_t>(blockIdx.x) * vocab, vocab, 0, rule.temperature, false};
  const float largest = row.logits[best];
  row.infinite = largest == INFINITY;
  row.max = row.infinite ? 0.0f : largest;
  __syncthreads();  // all have read what is overwritten at the end

  std::uint64_t least = 0;
  if (rule.top_k > 0 && rule.top_k < vocab) {
    const auto k = static_cast<std::uint64_t>(rule.top_k);
    least = find_cut(
        s, row, 0, [](float) -> std::uint64_t { return 1; }, [&](std::uint64_t) { return k; });
  }
  if (rule.top_p < 1) {
    const double share = static_cast<double>(rule.top_p) * (1 - kShareSlack);
    const auto target = [&](std::uint64_t total) {
      return max(std::uint64_t{1}, static_cast<std::uint64_t>(ceil(share * static_cast<double>(total))));
    };
    least = max(least, find_cut(
                           s, row, least, [&](float v) { return row.units(v); }, target));
  }
  const double least_weight = static_cast<double>(rule.min_p) * (1 - kShareSlack);
  const auto units = [&](int i) -> std::uint64_t {
    const float v = i < vocab ? row.at(i) : -INFINITY;
    if (i >= vocab || order(v, i) < least) return 0;
    const float w = row.weight(v);
    return static_cast<double>(w) >= least_weight ? static_cast<std::uint64_t>(w * kUnit) : 0;
  };

  // Warps have contiguous ranges of ids, the first warp the smallest.
  const int each = (vocab + kThreads - 1) / kThreads * kWarp, first = warp * each, stop = min(vocab, first + each);
  std::uint64_t own = 0;
#pragma unroll 4
  for (int i = first + lane; i < stop; i += kWarp) own += units(i);
#pragma unroll
  for (int k = kWarp / 2; k > 0; k /= 2) own += __shfl_xor_sync(~0u, own, k);
  std::uint64_t before = block_exclusive_scan(s, lane == 0 ? own : 0);
  before = __shfl_sync(~0u, before, 0);
  const std::uint64_t target =
      min(static_cast<std::uint64_t>(rule.u * static_cast<double>(s.total)), s.total - 1);  // the total exceeds it
  if (before > target || before + own <= target) return;
  for (int i = first; i < stop; i += kWarp) {
    std::uint64_t up_to = units(i + lane);
#pragma unroll
    for (int k = 1; k < kWarp; k *= 2) {
      const std::uint64_t other = __shfl_up_sync(~0u, up_to, k);
      if (lane >= k) up_to += other;
    }
    const unsigned beyond = __ballot_sync(~0u, before + up_to > target);
    if (beyond == 0) {
      before += __shfl_sync(~0u, up_to, kWarp - 1);
      continue;
    }
    if (lane == 0) {
      const int drawn = i + __ffs(static_cast<int>(beyond)) - 1;
      token[blockIdx.x] = drawn;
      logprob[blockIdx.x] = row.at(drawn) - row.max + best_logprob;
    }
    return;
  }
}

// A thread per id and row.
__global__ void __launch_bounds__(kThreads)
    forbid_kernel(float* logits, const std::int32_t* ids, std::int32_t n_ids, std::int32_t vocab) {
  grid_dependency_wait();
  launch_dependents();
  const auto i = static_cast<std::int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i < n_ids) logits[static_cast<std::int64_t>(blockIdx.y) * vocab + ids[i]] = -INFINITY;
}

__global__ void __launch_bounds__(kThreads) soft_cap_kernel(float* logits, float cap, std::int64_t total) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < total) logits[at] = cap * tanhf(logits[at] / cap);
}

}  // namespace

void soft_cap_cuda(float* logits, float cap, std::int32_t n, std::int32_t vocab, const CudaContext& context) {
  const std::int64_t total = std::int64_t{n} * vocab;
  if (total == 0) return;
  launch(context, "soft_cap", soft_cap_kernel, dim3(static_cast<unsigned>((total + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, logits, cap, total);
}

void forbid_tokens_cuda(float* logits, const std::int32_t* ids, std::int32_t n_ids, std::int32_t n, std::int32_t vocab,
                        const CudaContext& context) {
  if (n_ids == 0 || n == 0) return;
  launch(context, "forbid_tokens", forbid_kernel,
         dim3(static_cast<unsigned>((n_ids + kThreads - 1) / kThreads), static_cast<unsigned>(n)), dim3(kThreads), 0,
         logits, ids, n_ids, vocab);
}

void sample_cuda(const float* logits, const SamplingRule* rules, std::int32_t n, std::int32_t vocab,
                 std::int32_t* token, float* logprob, const CudaContext& context) {
  static const bool ready = [] {
    cuda_check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
               "sampling's shared memory");
    return true;
  }();
  static_cast<void>(ready);
  launch(context, "sample", sample_kernel, dim3(static_cast<unsigned>(n)), dim3(kThreads), sizeof(Shared), logits,
         rules, vocab, token, logprob);
}

}  // namespace mneme

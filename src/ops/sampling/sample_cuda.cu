// A block of threads a row, which reads the row a few times: it lies in L2, and other rows have other multiprocessors.
// A cut (the k-th largest, or where a share of the weight is reached) is found by a histogram over the distance from
// the largest logit, then among the tokens of one bin, sorted.
#include "src/kernels/cuda_common.cuh"
#include "src/kernels/sample_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kBinsPerNat = 64, kBins = 87 * kBinsPerNat + 1;  // weights end at e^-87
constexpr int kEach = (kBins + kThreads - 1) / kThreads;
constexpr int kList = 4096;  // tokens that are sorted
constexpr int kDigitBits = 11;
constexpr double kShareSlack = 1e-6;  // survivors.h
constexpr float kUnit = 0x1p40f;      // a weight of 1

struct Shared {
  std::uint64_t sum[kBins], list[kList], of_warp[kWarps];
  std::uint32_t count[kBins];
  std::uint64_t total, reached, cut;
  int bin, in_bin, n_list, token;
};

struct Row {
  const float* logits;
  int vocab;
  float max, temperature;  // max: where it is infinite, 0
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

// The likelier, the larger: by logit, then by the smaller id.
__device__ __forceinline__ std::uint64_t order(float v, int i) {
  const std::uint32_t bits = __float_as_uint(v == 0 ? 0.0f : v), key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(key) << 32 | ~static_cast<std::uint32_t>(i);
}
__device__ __forceinline__ float value_of(std::uint64_t order) {
  const auto key = static_cast<std::uint32_t>(order >> 32);
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// f(logit, id) for the whole row.
template <typename F>
__device__ __forceinline__ void for_row(const Row& row, F&& f) {
#pragma unroll 4
  for (int i = threadIdx.x; i < row.vocab; i += kThreads) f(row.at(i), i);
}

// The sum of `v` over the threads before this one; all of it to s.total.
__device__ __forceinline__ std::uint64_t sum_before(Shared& s, std::uint64_t v) {
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

// The first of n bins with which s.reached comes up to what is wanted: s.bin, s.in_bin, and s.reached before it.
// wanted: target(total of the bins).
template <typename Target>
__device__ __forceinline__ std::uint64_t find_bin(Shared& s, int n, Target&& target) {
  const int first = threadIdx.x * kEach;
  std::uint64_t own = 0;
  for (int i = 0; i < kEach; ++i)
    if (first + i < n) own += s.sum[first + i];
  const std::uint64_t reached = s.reached;
  std::uint64_t before = reached + sum_before(s, own);
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

// s.list[0, n) in falling order; n is a power of two.
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

// In falling order of the tokens from `least` on, the one with which measure's sum reaches target(the whole sum): its
// order().   measure(logit): at least 1 in all
template <typename Measure, typename Target>
__device__ __forceinline__ std::uint64_t find_cut(Shared& s, const Row& row, std::uint64_t least, Measure&& measure,
                                                  Target&& target) {
  const int tid = threadIdx.x;
  const auto clear = [&](int n) {
    for (int i = tid; i < n; i += kThreads) s.sum[i] = 0, s.count[i] = 0;
    __syncthreads();
  };
  const auto add = [&](int bin, float v) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&s.sum[bin]), static_cast<unsigned long long>(measure(v)));
    atomicAdd(&s.count[bin], 1u);
  };
  if (tid == 0) s.reached = 0, s.n_list = 0;
  clear(kBins);
  for_row(row, [&](float v, int i) {
    if (order(v, i) >= least) add(row.bin(v), v);
  });
  __syncthreads();
  const std::uint64_t wanted = find_bin(s, kBins, target);
  const int bin = s.bin;

  // Too many of about the same logit: by the digits of their order.
  std::uint64_t prefix = 0;
  int shift = 64;
  const auto inside = [&](float v, int i) {
    const std::uint64_t at = order(v, i);
    return row.bin(v) == bin && at >= least && (shift == 64 || at >> shift == prefix);
  };
  while (s.in_bin > kList) {
    const int next = max(shift - kDigitBits, 0), digits = 1 << (shift - next);
    const auto digit = [&](std::uint64_t at) {
      return digits - 1 - static_cast<int>(at >> next & static_cast<std::uint64_t>(digits - 1));
    };
    __syncthreads();
    clear(digits);
    for_row(row, [&](float v, int i) {
      if (inside(v, i)) add(digit(order(v, i)), v);
    });
    __syncthreads();
    find_bin(s, digits, [&](std::uint64_t) { return wanted; });
    prefix = (shift == 64 ? 0 : prefix << (shift - next)) | static_cast<std::uint64_t>(digits - 1 - s.bin);
    shift = next;
  }

  for_row(row, [&](float v, int i) {
    if (inside(v, i)) s.list[atomicAdd(&s.n_list, 1)] = order(v, i);
  });
  __syncthreads();
  const int n = s.n_list;
  int padded = 1;
  while (padded < n) padded *= 2;
  for (int i = n + tid; i < padded; i += kThreads) s.list[i] = 0;
  __syncthreads();
  sort_list(s, padded);
  constexpr int kOwn = kList / kThreads;
  std::uint64_t own = 0;
  for (int i = 0; i < kOwn; ++i)
    if (tid * kOwn + i < n) own += measure(value_of(s.list[tid * kOwn + i]));
  const std::uint64_t reached = s.reached;
  std::uint64_t before = reached + sum_before(s, own);
  for (int i = 0; i < kOwn && tid * kOwn + i < n; ++i) {
    const std::uint64_t at = s.list[tid * kOwn + i], after = before + measure(value_of(at));
    if (before < wanted && after >= wanted) s.cut = at;
    before = after;
  }
  __syncthreads();
  return s.cut;
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, const DrawRule* rules, int vocab, std::int32_t* token, float* logprob) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  wait_for_previous();
  const DrawRule rule = rules[blockIdx.x];
  if (!(rule.temperature > 0)) return;
  const int best = token[blockIdx.x], tid = threadIdx.x, lane = tid % kWarp, warp = tid / kWarp;
  const float best_logprob = logprob[blockIdx.x];
  if (best_logprob == -INFINITY) return;
  Row row{logits + static_cast<std::int64_t>(blockIdx.x) * vocab, vocab, 0, rule.temperature, false};
  const float largest = row.logits[best];
  row.infinite = largest == INFINITY;
  row.max = row.infinite ? 0.0f : largest;
  __syncthreads();  // all have read what is written at the end

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

  // Warps have stretches of ids, the first warp the smallest.
  const int each = (vocab + kThreads - 1) / kThreads * kWarp, first = warp * each, stop = min(vocab, first + each);
  std::uint64_t own = 0;
#pragma unroll 4
  for (int i = first + lane; i < stop; i += kWarp) own += units(i);
#pragma unroll
  for (int k = kWarp / 2; k > 0; k /= 2) own += __shfl_xor_sync(~0u, own, k);
  std::uint64_t before = sum_before(s, lane == 0 ? own : 0);
  before = __shfl_sync(~0u, before, 0);
  const std::uint64_t target =
      min(static_cast<std::uint64_t>(rule.u * static_cast<double>(s.total)), s.total - 1);  // the sum goes beyond it
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

}  // namespace

void sample_cuda(const float* logits, const DrawRule* rules, std::int32_t n, std::int32_t vocab, std::int32_t* token,
                 float* logprob, const CudaContext& context) {
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

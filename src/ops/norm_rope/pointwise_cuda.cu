#include "src/kv/kv_codes.cuh"
#include "src/ops/gemm/device/silu.cuh"
#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256;

// Reduction over the thread block; every thread gets the result.
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float parts[kThreads / kWarp];
  v = warp_sum(v);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  v = threadIdx.x < kThreads / kWarp ? parts[threadIdx.x] : 0.0f;
  if (threadIdx.x < kWarp) {
    v = warp_sum(v);
    if (threadIdx.x == 0) parts[0] = v;
  }
  __syncthreads();
  return parts[0];
}

// Starts the first norm of rows of the residual. One thread block per row.
__global__ void __launch_bounds__(kThreads) first_norm_kernel(int hidden, EmbedOutput out) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t row = blockIdx.x;
  float squares = 0;
  for (int i = threadIdx.x; i < hidden; i += kThreads) {
    const float v = out.residual[row * hidden + i];
    static_cast<__nv_bfloat16*>(out.x_next)[row * hidden + i] = __float2bfloat16_rn(v * out.norm_weight[i]);
    squares += v * v;
  }
  squares = block_sum(squares);
  if (threadIdx.x == 0) out.sums[row] = squares;
}

__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const float* x, const std::int32_t* rows, int h,
                                                            const float* weight, float eps, __nv_bfloat16* out) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t from = rows == nullptr ? blockIdx.x : rows[blockIdx.x];
  const auto* in = reinterpret_cast<const float4*>(x + from * h);
  auto* to = reinterpret_cast<uint2*>(out + static_cast<std::int64_t>(blockIdx.x) * h);
  const auto* w = reinterpret_cast<const float4*>(weight);
  float squares = 0;
  for (int i = threadIdx.x; i < h / 4; i += kThreads) {
    const float4 v = in[i];
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(h) + eps);
  for (int i = threadIdx.x; i < h / 4; i += kThreads) {
    const float4 v = in[i], u = w[i];
    to[i] = {pack<__nv_bfloat16>(v.x * scale * u.x, v.y * scale * u.y),
             pack<__nv_bfloat16>(v.z * scale * u.z, v.w * scale * u.w)};
  }
}

__global__ void __launch_bounds__(kThreads)
    add_normed_kernel(float* residual, const float* x, int h, const float* weight, float eps) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * h;
  float squares = 0;
  for (int i = threadIdx.x; i < h; i += kThreads) squares += x[first + i] * x[first + i];
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(h) + eps);
  for (int i = threadIdx.x; i < h; i += kThreads) residual[first + i] += x[first + i] * scale * weight[i];
}

__global__ void __launch_bounds__(kThreads)
    norm_in_place_kernel(__nv_bfloat16* x, int h, std::int64_t stride, const float* weight, float eps) {
  grid_dependency_wait();
  launch_dependents();
  __nv_bfloat16* row = x + blockIdx.x * stride;
  float squares = 0;
  for (int i = threadIdx.x; i < h; i += kThreads) {
    const float v = __bfloat162float(row[i]);
    squares += v * v;
  }
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(h) + eps);
  for (int i = threadIdx.x; i < h; i += kThreads)
    row[i] = __float2bfloat16_rn(__bfloat162float(row[i]) * scale * weight[i]);
}

__global__ void __launch_bounds__(kThreads) scale_kernel(float* x, float scale, std::int64_t total) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < total) x[at] *= scale;
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), without the cancellation.
__device__ __forceinline__ float gelu(float x) {
  return x / (1.0f + __expf(-x * (1.59576912f + 0.0713548163f * x * x)));
}

template <bool kGelu>
__device__ __forceinline__ std::uint32_t gated_pair(std::uint32_t gate, std::uint32_t up) {
  const float2 g = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(gate));
  const float2 u = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(up));
  if constexpr (kGelu) return pack<__nv_bfloat16>(gelu(g.x) * u.x, gelu(g.y) * u.y);
  return pack<__nv_bfloat16>(silu(g.x) * u.x, silu(g.y) * u.y);
}

template <bool kGelu>
__global__ void __launch_bounds__(kThreads)
    gated_kernel(const uint4* gate_up, std::int64_t total, int eighths, uint4* out) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= total) return;
  const std::int64_t row = at / eighths, i = at % eighths;
  const uint4 g = gate_up[row * 2 * eighths + i], u = gate_up[(row * 2 + 1) * eighths + i];
  out[at] = {gated_pair<kGelu>(g.x, u.x), gated_pair<kGelu>(g.y, u.y), gated_pair<kGelu>(g.z, u.z),
             gated_pair<kGelu>(g.w, u.w)};
}

__global__ void __launch_bounds__(kThreads) bias_kernel(float* x, const float* bias, std::int64_t total, int width) {
  grid_dependency_wait();
  launch_dependents();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < total) x[at] += bias[at % width];
}

__global__ void angles_kernel(const std::int32_t* positions, const double* inv_freq, int half, double scale,
                              float2* out) {
  grid_dependency_wait();
  launch_dependents();
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    double s, c;
    sincos(static_cast<double>(positions[blockIdx.x]) * inv_freq[i], &s, &c);
    const double by = inv_freq[i] == 0 ? 1.0 : scale;
    out[static_cast<std::int64_t>(blockIdx.x) * half + i] = {static_cast<float>(c * by), static_cast<float>(s * by)};
  }
}

struct Best {
  float value;
  int token;
};

__device__ __forceinline__ Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
}

constexpr int kArgmaxThreads = 1024;
constexpr int kLogitsInFlight = 16;  // per thread: one thread block reads a row, so latency is the time

// Calls f(logit, token) for a thread's share of a row.
template <typename F>
__device__ __forceinline__ void for_each_logit(const float* row, int vocab, F&& f) {
  for (int first = threadIdx.x; first < vocab; first += kArgmaxThreads * kLogitsInFlight) {
    float v[kLogitsInFlight];
#pragma unroll
    for (int k = 0; k < kLogitsInFlight; ++k) {
      const int i = first + k * kArgmaxThreads;
      v[k] = i < vocab ? row[i] : -INFINITY;
    }
#pragma unroll
    for (int k = 0; k < kLogitsInFlight; ++k) f(v[k], first + k * kArgmaxThreads);
  }
}

__global__ void __launch_bounds__(kArgmaxThreads)
    argmax_kernel(const float* logits, int vocab, std::int32_t* token, float* logprob) {
  grid_dependency_wait();
  launch_dependents();
  __shared__ Best best_of[kArgmaxThreads / kWarp];
  __shared__ float sum_of[kArgmaxThreads / kWarp];
  const float* row = logits + static_cast<std::int64_t>(blockIdx.x) * vocab;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Best best{-INFINITY, 0x7fffffff};
  for_each_logit(row, vocab, [&](float v, int i) { best = better(best, {v, i}); });  // NaN never compares larger
#pragma unroll
  for (int k = kWarp / 2; k > 0; k /= 2)
    best = better(best, {__shfl_xor_sync(~0u, best.value, k), __shfl_xor_sync(~0u, best.token, k)});
  if (lane == 0) best_of[warp] = best;
  __syncthreads();
  for (int i = 0; i < kArgmaxThreads / kWarp; ++i) best = better(best, best_of[i]);

  float sum = 0;
  for_each_logit(row, vocab, [&](float v, int) {
    if (v > -INFINITY) sum += best.value == INFINITY ? (v == INFINITY ? 1.0f : 0.0f) : __expf(v - best.value);
  });
  sum = warp_sum(sum);
  if (lane == 0) sum_of[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (float s : sum_of) sum += s;
  const bool any = best.value > -INFINITY;
  token[blockIdx.x] = any ? best.token : 0;
  logprob[blockIdx.x] = any ? -logf(sum) : -INFINITY;
}

__device__ __forceinline__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ __forceinline__ float2 normal_pair(std::uint64_t seed, std::uint64_t number) {
  const std::uint64_t bits = mix(seed * 0x2545f4914f6cdd1dull + number);
  const float u = (static_cast<float>(bits >> 40) + 1.0f) * 0x1p-24f;
  const float v = static_cast<float>(bits & 0xffffff) * 0x1p-24f, r = sqrtf(-2.0f * __logf(u));
  return {r * __cosf(6.2831853f * v), r * __sinf(6.2831853f * v)};
}

template <typename T>
__global__ void random_kernel(std::int64_t pairs, std::uint64_t seed, std::uint32_t* out) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < pairs;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const float2 two = normal_pair(seed, static_cast<std::uint64_t>(i));
    out[i] = pack<T>(two.x, two.y);
  }
}

// One warp per row of keys or values.
__global__ void __launch_bounds__(kThreads)
    random_codes_kernel(std::int64_t n_rows, KvCodes codes, int d, std::uint64_t seed, std::byte* out) {
  constexpr int kEach = 256 / kWarp;  // channels of a lane: heads of up to 256
  const int lane = threadIdx.x % kWarp;
  for (std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp; row < n_rows;
       row += static_cast<std::int64_t>(gridDim.x) * kThreads / kWarp) {
    float x[kEach], largest = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + i * kWarp >= d) break;
      const float2 two = normal_pair(seed, static_cast<std::uint64_t>(row * d + lane + i * kWarp));
      x[i] = two.x, largest = fmaxf(largest, fabsf(x[i]));
    }
#pragma unroll
    for (int k = kWarp / 2; k > 0; k /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, k));
    const CodeScale s = row_scale(codes, largest);
    std::byte* token = out + row / 2 * kv_token_bytes(codes, d);
    const int part = static_cast<int>(row % 2);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + i * kWarp >= d) break;
      reinterpret_cast<std::uint8_t*>(token)[part * d + lane + i * kWarp] = code_of(codes, x[i], s.inverse);
    }
    if (lane == 0) reinterpret_cast<float*>(token + 2 * d)[part] = s.scale;
  }
}

__global__ void update_kernel(std::int32_t* blocks, const TableUpdate* updates, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) blocks[updates[i].at] = static_cast<std::int32_t>(updates[i].value);
}

dim3 blocks_for(std::int64_t n) {
  return dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads));
}

}  // namespace

void embed_cuda(const std::int32_t* ids, std::int32_t n, const DeviceMatrix& table, const EmbedOutput& out,
                const CudaContext& context) {
  read_rows_cuda(table, ids, n, out.residual, context);
  const std::int64_t total = std::int64_t{n} * table.n_in;
  if (out.scale != 1)
    launch(context, "scale", scale_kernel, blocks_for(total), dim3(kThreads), 0, out.residual, out.scale, total);
  if (out.x_next == nullptr) return;
  launch(context, "first_norm", first_norm_kernel, dim3(static_cast<unsigned>(n)), dim3(kThreads), 0,
         static_cast<int>(table.n_in), out);
}

void rms_norm_cuda(const float* x, const std::int32_t* rows, std::int32_t n, std::int32_t h, const float* weight,
                   float eps, void* out, const CudaContext& context) {
  launch(context, "rms_norm", rms_norm_kernel, dim3(static_cast<unsigned>(n)), dim3(kThreads), 0, x, rows, h, weight,
         eps, static_cast<__nv_bfloat16*>(out));
}

void add_normed_cuda(float* residual, const float* x, std::int32_t n, std::int32_t h, const float* weight, float eps,
                     const CudaContext& context) {
  launch(context, "add_normed", add_normed_kernel, dim3(static_cast<unsigned>(n)), dim3(kThreads), 0, residual, x, h,
         weight, eps);
}

void norm_in_place_cuda(void* x, std::int32_t n, std::int32_t h, std::int64_t stride, const float* weight, float eps,
                        const CudaContext& context) {
  launch(context, "norm_in_place", norm_in_place_kernel, dim3(static_cast<unsigned>(n)), dim3(kThreads), 0,
         static_cast<__nv_bfloat16*>(x), h, stride, weight, eps);
}

void swiglu_cuda(const void* gate_up, std::int32_t n, std::int32_t ffn, void* out, const CudaContext& context) {
  const std::int64_t total = static_cast<std::int64_t>(n) * (ffn / 8);
  launch(context, "swiglu", gated_kernel<false>, blocks_for(total), dim3(kThreads), 0,
         static_cast<const uint4*>(gate_up), total, ffn / 8, static_cast<uint4*>(out));
}

void geglu_cuda(const void* gate_up, std::int32_t n, std::int32_t ffn, void* out, const CudaContext& context) {
  const std::int64_t total = static_cast<std::int64_t>(n) * (ffn / 8);
  launch(context, "geglu", gated_kernel<true>, blocks_for(total), dim3(kThreads), 0, static_cast<const uint4*>(gate_up),
         total, ffn / 8, static_cast<uint4*>(out));
}

void add_bias_cuda(float* x, const float* bias, std::int32_t n, std::int32_t width, const CudaContext& context) {
  const std::int64_t total = std::int64_t{n} * width;
  launch(context, "add_bias", bias_kernel, blocks_for(total), dim3(kThreads), 0, x, bias, total, width);
}

void rope_angles_cuda(const std::int32_t* positions, std::int32_t n, const double* inv_freq, std::int32_t half,
                      double scale, float* out, const CudaContext& context) {
  launch(context, "rope_angles", angles_kernel, dim3(static_cast<unsigned>(n)), dim3(64), 0, positions, inv_freq, half,
         scale, reinterpret_cast<float2*>(out));
}

void argmax_cuda(const float* logits, std::int32_t n, std::int32_t vocab, std::int32_t* token, float* logprob,
                 const CudaContext& context) {
  launch(context, "argmax", argmax_kernel, dim3(static_cast<unsigned>(n)), dim3(kArgmaxThreads), 0, logits, vocab,
         token, logprob);
}

void random_kv_cuda(void* out, std::int64_t n, bool f16, std::uint64_t seed, const CudaContext& context) {
  launch(context, "random_kv", f16 ? random_kernel<__half> : random_kernel<__nv_bfloat16>, dim3(1024), dim3(kThreads),
         0, n / 2, seed, static_cast<std::uint32_t*>(out));
}

void random_codes_cuda(void* out, std::int64_t n_tokens, KvCodes codes, std::int32_t head_dim, std::uint64_t seed,
                       const CudaContext& context) {
  launch(context, "random_kv", random_codes_kernel, dim3(1024), dim3(kThreads), 0, 2 * n_tokens, codes, head_dim, seed,
         static_cast<std::byte*>(out));
}

void update_tables_cuda(std::int32_t* blocks, const TableUpdate* updates, std::int64_t n, const CudaContext& context) {
  launch(context, "update_tables", update_kernel, blocks_for(n), dim3(kThreads), 0, blocks, updates, n);
}

}  // namespace mneme

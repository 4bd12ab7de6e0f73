// Two launches a step: prepare_kernel (convolution, l2 norms, gates), then rows_kernel, in which a thread block has a
// head's S in registers: S is read once and written once. Prompts run rows_kernel over many rows, or chunks.
#include <algorithm>

#include "src/ops/gemm/device/silu.cuh"
#include "src/ops/recurrent/delta_kernels.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kPrepareWarps = 4;
constexpr int kHead = kMaxDeltaHeadCuda;
constexpr int kOfLane = kHead / kWarp;  // channels of a lane, kWarp apart
constexpr int kMaxTaps = kMaxDeltaTapsCuda;

template <typename X>
__device__ __forceinline__ float value_at(const void* p, std::int64_t at) {
  return widen(static_cast<const X*>(p)[at]);
}

// silu(sum_i conv[c, i] x_{row - taps + 1 + i}). With kStep `inputs` move on by the row.
template <typename X, bool kStep>
__device__ __forceinline__ float convolved(const DeltaKernelArgs& a, float* inputs, int row, int c) {
  const int taps = a.s.taps, channels = a.s.channels();
  const float* weight = a.parameters.conv + std::int64_t{c} * taps;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxTaps; ++i) {
    if (i >= taps) break;
    const int from = kStep ? i - taps + 1 : row - taps + 1 + i;
    const float x = from < 0 ? inputs[std::int64_t{taps - 1 + from} * channels + c]
                             : value_at<X>(a.rows.x, (kStep ? row : from) * a.rows.x_stride + c);
    if (kStep && i > 0) inputs[std::int64_t{i - 1} * channels + c] = x;
    sum = fmaf(weight[i], x, sum);
  }
  return sum / (1.0f + expf(-sum));
}

// g = A softplus(alpha + dt) and b = sigmoid(beta) of a row's value head.
__device__ __forceinline__ void gates_of(const DeltaKernelArgs& a, std::int64_t row, int head) {
  constexpr float kLeast = -200.0f;  // e^g is 0 in f32 from -104 on; sums of more would lose the small ones
  const float x = a.rows.alpha[row * a.rows.gate_stride + head] + a.parameters.dt[head];
  const float softplus = (x > 0 ? x : 0.0f) + log1pf(expf(-fabsf(x)));
  const float g = a.parameters.a[head] * softplus;
  float* to = a.scratch.gates + row * 2 * a.s.n_v_heads + head;
  to[0] = g < kLeast ? kLeast : g;  // NaN stays
  to[a.s.n_v_heads] = 1.0f / (1.0f + expf(-a.rows.beta[row * a.rows.gate_stride + head]));
}

// A warp per row and head: first q's heads, k's, v's, then the gates of 32 value heads each.
template <typename X, bool kStep>
__global__ void __launch_bounds__(kPrepareWarps* kWarp) prepare_kernel(DeltaKernelArgs a) {
  constexpr float kEps = 1e-6f;
  grid_dependency_wait();
  launch_dependents();
  const int lane = threadIdx.x % kWarp, unit = blockIdx.x * kPrepareWarps + threadIdx.x / kWarp, row = blockIdx.y;
  const int slot = a.slot_of(row), keys = 2 * a.s.n_k_heads, heads = keys + a.s.n_v_heads;
  if (slot < 0) return;
  if (unit >= heads) {
    const int head = (unit - heads) * kWarp + lane;
    if (head < a.s.n_v_heads) gates_of(a, row, head);
    return;
  }
  const bool is_key = unit < keys;
  const int d = is_key ? a.s.d_k : a.s.d_v;
  const int first = is_key ? unit * a.s.d_k : 2 * a.s.key_width() + (unit - keys) * a.s.d_v;
  float* inputs = a.state_of(slot);
  float v[kOfLane], squares = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    v[i] = lane + i * kWarp < d ? convolved<X, kStep>(a, inputs, row, first + lane + i * kWarp) : 0.0f;
    squares += v[i] * v[i];
  }
  float scale = 1;
  if (is_key) {
    squares = warp_sum(squares) + kEps;
    scale = rsqrtf(unit < a.s.n_k_heads ? squares * static_cast<float>(d) : squares);
  }
  float* to = a.scratch.convolved + static_cast<std::int64_t>(row) * a.s.channels() + first;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i)
    if (lane + i * kWarp < d) to[lane + i * kWarp] = v[i] * scale;
}

// The last inputs of a slot's convolution, behind n rows. A thread per channel.
template <typename X>
__global__ void __launch_bounds__(256) keep_inputs_kernel(DeltaKernelArgs a) {
  grid_dependency_wait();
  launch_dependents();
  const int c = blockIdx.x * 256 + threadIdx.x, channels = a.s.channels(), before = a.s.taps - 1;
  if (c >= channels) return;
  float* inputs = a.state_of(a.slot) + c;
  for (int i = 0; i < before; ++i) {
    const int from = a.n + i;  // of the old inputs and the rows
    inputs[std::int64_t{i} * channels] = from < before ? inputs[std::int64_t{from} * channels]
                                                       : value_at<X>(a.rows.x, (from - before) * a.rows.x_stride + c);
  }
}

// ---- row by row: warp w has rows 8 w to 8 w + 7 of S, a lane has four columns of them

constexpr int kRowWarps = 16, kRowThreads = kRowWarps * kWarp;
constexpr int kRowsOfWarp = kHead / kRowWarps;

struct RowShared {
  float4 by_k[kRowWarps][kWarp], by_q[kRowWarps][kWarp];  // parts of S^T k, S^T q
  float k_by_q[kRowWarps];
  float delta[kHead];
  float squares[kHead / kWarp];
};

__device__ __forceinline__ void add_product(float4& sum, float a, const float4& b) {
  sum.x = fmaf(a, b.x, sum.x), sum.y = fmaf(a, b.y, sum.y), sum.z = fmaf(a, b.z, sum.z), sum.w = fmaf(a, b.w, sum.w);
}

// decay s + k delta
__device__ __forceinline__ float4 decayed(const float4& s, float decay, float k, const float4& delta) {
  return {fmaf(k, delta.x, s.x * decay), fmaf(k, delta.y, s.y * decay), fmaf(k, delta.z, s.z * decay),
          fmaf(k, delta.w, s.w * decay)};
}

// The sum of a column's parts, in the order of warps.
__device__ __forceinline__ float column_sum(const float4 (&parts)[kRowWarps][kWarp], int column) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kRowWarps; ++w) sum += reinterpret_cast<const float*>(parts[w])[column];
  return sum;
}

// Four of q or k, for four rows of S; zeros behind d_k.
__device__ __forceinline__ float4 keys_at(const float* keys, int first, int d_k) {
  return first < d_k ? *reinterpret_cast<const float4*>(keys + first) : float4{};
}
__device__ __forceinline__ float dot(const float4& a, const float4& b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

template <typename X>
__device__ __forceinline__ void store_gated(const DeltaKernelArgs& a, std::int64_t row, int at, float normed) {
  static_cast<__nv_bfloat16*>(a.rows.y)[row * a.s.value_width() + at] =
      narrow<__nv_bfloat16>(normed * silu(value_at<X>(a.rows.z, row * a.rows.z_stride + at)));
}

// A thread block per value head and sequence, of a row each with kStep, else of `n_rows`. With kStep S is read before the
// kernels that precede this one are complete, but for prepare_kernel, which leaves S alone and launches this when all
// before itself are.
//   out = e^g S^T q + (k q) delta, which is the new state's S^T q: one pass over S, one reduction
template <typename X, bool kStep>
__global__ void __launch_bounds__(kRowThreads, kStep ? 2 : 1) rows_kernel(DeltaKernelArgs a, int n_rows) {
  __shared__ RowShared shared;
  const int head = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, thread = threadIdx.x;
  const int slot = a.slot_of(blockIdx.y), d_k = a.s.d_k, d_v = a.s.d_v, first = warp * kRowsOfWarp;
  const bool has_columns = lane * 4 < d_v;
  if (!kStep) grid_dependency_wait();
  float* state = slot < 0 ? nullptr : a.state_of(slot) + a.s.state_at(head);
  float4 s[kRowsOfWarp];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i)
    s[i] = slot >= 0 && has_columns && first + i < d_k
               ? *reinterpret_cast<const float4*>(state + (first + i) * d_v + lane * 4)
               : float4{};
  grid_dependency_wait();
  launch_dependents();
  if (slot < 0) {
    if (thread < d_v)
      static_cast<__nv_bfloat16*>(a.rows.y)[std::int64_t{blockIdx.y} * a.s.value_width() + head * d_v + thread] = 0.0f;
    return;
  }
  const float norm = thread < d_v ? a.norm[thread] : 0.0f;
  for (int i_row = 0; i_row < (kStep ? 1 : n_rows); ++i_row) {
    const std::int64_t row = kStep ? blockIdx.y : i_row;
    const float* channels = a.scratch.convolved + row * a.s.channels();
    const float* q = channels + a.s.key_head(head) * d_k;
    const float* k = q + a.s.key_width();
    const float* gates = a.scratch.gates + row * 2 * a.s.n_v_heads + head;
    const float decay = expf(gates[0]), b = gates[a.s.n_v_heads];
    float4 by_k{}, by_q{};
    float k_by_q = 0;
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; i += 4) {
      const float4 u = keys_at(k, first + i, d_k), w = keys_at(q, first + i, d_k);
      add_product(by_k, u.x, s[i]), add_product(by_k, u.y, s[i + 1]);
      add_product(by_k, u.z, s[i + 2]), add_product(by_k, u.w, s[i + 3]);
      add_product(by_q, w.x, s[i]), add_product(by_q, w.y, s[i + 1]);
      add_product(by_q, w.z, s[i + 2]), add_product(by_q, w.w, s[i + 3]);
      k_by_q += dot(u, w);
    }
    shared.by_k[warp][lane] = by_k, shared.by_q[warp][lane] = by_q;
    if (lane == 0) shared.k_by_q[warp] = k_by_q;
    __syncthreads();
    float out = 0;
    if (thread < kHead) {
      float both = 0;
#pragma unroll
      for (int w = 0; w < kRowWarps; ++w) both += shared.k_by_q[w];
      const float v = thread < d_v ? channels[2 * a.s.key_width() + head * d_v + thread] : 0.0f;
      const float delta = b * (v - decay * column_sum(shared.by_k, thread));
      out = thread < d_v ? fmaf(both, delta, decay * column_sum(shared.by_q, thread)) : 0.0f;
      shared.delta[thread] = delta;
      const float squares = warp_sum(out * out);
      if (lane == 0) shared.squares[warp] = squares;
    }
    __syncthreads();
    const float4 delta = reinterpret_cast<const float4*>(shared.delta)[lane];
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; i += 4) {
      const float4 u = keys_at(k, first + i, d_k);  // again: kept, it would take registers of S
      s[i] = decayed(s[i], decay, u.x, delta), s[i + 1] = decayed(s[i + 1], decay, u.y, delta);
      s[i + 2] = decayed(s[i + 2], decay, u.z, delta), s[i + 3] = decayed(s[i + 3], decay, u.w, delta);
    }
    if (thread < d_v) {
      float squares = 0;
#pragma unroll
      for (int w = 0; w < kHead / kWarp; ++w) squares += shared.squares[w];
      const float scale = rsqrtf(squares / static_cast<float>(d_v) + a.norm_eps);
      store_gated<X>(a, row, head * d_v + thread, out * scale * norm);
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i)
    if (has_columns && first + i < d_k) *reinterpret_cast<float4*>(state + (first + i) * d_v + lane * 4) = s[i];
}

// The gated norm of scratch.out. A warp per row and head.
template <typename X>
__global__ void __launch_bounds__(kPrepareWarps* kWarp) gated_norm_kernel(DeltaKernelArgs a) {
  grid_dependency_wait();
  launch_dependents();
  const int lane = threadIdx.x % kWarp, head = blockIdx.x * kPrepareWarps + threadIdx.x / kWarp, d_v = a.s.d_v;
  const std::int64_t row = blockIdx.y;
  if (head >= a.s.n_v_heads) return;
  const float* out = a.scratch.out + row * a.s.value_width() + head * d_v;
  float v[kOfLane], squares = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    v[i] = lane + i * kWarp < d_v ? out[lane + i * kWarp] : 0.0f;
    squares += v[i] * v[i];
  }
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(d_v) + a.norm_eps);
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int j = lane + i * kWarp;
    if (j < d_v) store_gated<X>(a, row, head * d_v + j, v[i] * scale * a.norm[j]);
  }
}

template <typename X, bool kStep>
void prepare(const DeltaKernelArgs& a, const CudaContext& context) {
  const int units = 2 * a.s.n_k_heads + a.s.n_v_heads + (a.s.n_v_heads + kWarp - 1) / kWarp;
  launch(context, "Gated DeltaNet: convolution", prepare_kernel<X, kStep>,
         grid_of((units + kPrepareWarps - 1) / kPrepareWarps, a.n), kPrepareWarps * kWarp, 0, a);
}

template <typename X>
void run_step(const DeltaKernelArgs& a, const CudaContext& context) {
  prepare<X, true>(a, context);
  launch(context, "Gated DeltaNet: step", rows_kernel<X, true>, grid_of(a.s.n_v_heads, a.n), kRowThreads, 0, a, 1);
}

// The arguments of n rows from `first` on, of those that scratch has.
DeltaKernelArgs part_of(DeltaKernelArgs a, std::int64_t first, std::int32_t n) {
  const std::int64_t value_width = std::int64_t{a.s.n_v_heads} * a.s.d_v,
                     channels = 2 * std::int64_t{a.s.n_k_heads} * a.s.d_k + value_width, bytes = a.rows.bf16 ? 2 : 4;
  a.n = n;
  a.rows.x = static_cast<const std::byte*>(a.rows.x) + first * a.rows.x_stride * bytes;
  a.rows.z = static_cast<const std::byte*>(a.rows.z) + first * a.rows.z_stride * bytes;
  a.rows.beta += first * a.rows.gate_stride, a.rows.alpha += first * a.rows.gate_stride;
  a.rows.y = static_cast<std::byte*>(a.rows.y) + first * value_width * 2;
  a.scratch.convolved += first * channels;
  a.scratch.gates += first * 2 * a.s.n_v_heads;
  a.scratch.out += first * value_width;
  return a;
}

// Rows [first, first + n) of those in scratch, one by one or in chunks.
template <typename X>
void run_rows(const DeltaKernelArgs& all, std::int64_t first, std::int32_t n, const CudaContext& context) {
  if (n == 0) return;
  launch(context, "Gated DeltaNet: rows", rows_kernel<X, false>, grid_of(all.s.n_v_heads), kRowThreads, 0,
         part_of(all, first, n), n);
}
template <typename X>
void run_chunks(const DeltaKernelArgs& all, std::int64_t first, std::int32_t n, std::int32_t offset,
                const CudaContext& context) {
  if (n == 0) return;
  const DeltaKernelArgs a = part_of(all, first, n);
  delta_chunks_cuda(a, offset, context);
  launch(context, "Gated DeltaNet: norm", gated_norm_kernel<X>,
         grid_of((a.s.n_v_heads + kPrepareWarps - 1) / kPrepareWarps, n), kPrepareWarps * kWarp, 0, a);
}

// Rows that scratch holds, from `position` on.
template <typename X>
void run_prompt(const DeltaKernelArgs& a, std::int64_t position, DeltaForm form, const CudaContext& context) {
  prepare<X, false>(a, context);
  if (form == DeltaForm::kRows) {
    run_rows<X>(a, 0, a.n, context);
  } else {
    const auto offset = static_cast<std::int32_t>(position % kDeltaChunkCuda);
    const std::int32_t head = offset == 0 ? 0 : std::min(a.n, kDeltaChunkCuda - offset),
                       tail = (a.n - head) % kDeltaChunkCuda;
    // Of the first and the last chunk, which are not whole.
    const std::int32_t begin = head < kFewDeltaRows ? head : 0, end = a.n - (tail < kFewDeltaRows ? tail : 0);
    run_rows<X>(a, 0, begin, context);
    run_chunks<X>(a, begin, end - begin, begin == 0 ? offset : 0, context);
    run_rows<X>(a, end, a.n - end, context);
  }
  const int channels = 2 * a.s.n_k_heads * a.s.d_k + a.s.n_v_heads * a.s.d_v;
  launch(context, "Gated DeltaNet: inputs", keep_inputs_kernel<X>, grid_of((channels + 255) / 256), 256, 0, a);
}

DeltaKernelArgs args_of(const DeltaLayerCuda& layer, const DeltaRowsCuda& rows, const DeltaScratchCuda& scratch) {
  return {.s = DeltaSizes(layer.shape),
          .parameters = layer.parameters,
          .norm = layer.norm,
          .norm_eps = layer.norm_eps,
          .states = layer.states,
          .slot_stride = layer.slot_stride,
          .slots = nullptr,
          .slot = 0,
          .n = 0,
          .rows = rows,
          .scratch = scratch};
}

}  // namespace

void delta_step_cuda(const DeltaLayerCuda& layer, const DeltaRowsCuda& rows, const std::int32_t* slots, std::int32_t n,
                     const DeltaScratchCuda& scratch, const CudaContext& context) {
  check_delta_step(layer.shape, n);
  DeltaKernelArgs a = args_of(layer, rows, scratch);
  a.slots = slots, a.n = n;
  rows.bf16 ? run_step<__nv_bfloat16>(a, context) : run_step<float>(a, context);
}

void delta_prompt_cuda(const DeltaLayerCuda& layer, const DeltaRowsCuda& rows, std::int32_t slot, std::int32_t n,
                       std::int64_t position, DeltaForm form, const DeltaScratchCuda& scratch,
                       const CudaContext& context) {
  check_delta_step(layer.shape, 0);
  DeltaKernelArgs a = args_of(layer, rows, scratch);
  a.slot = slot;
  if (form == DeltaForm::kChunks && !delta_chunks_on_device()) form = DeltaForm::kRows;
  for (std::int64_t done = 0; done < n;) {
    const auto room = static_cast<std::int32_t>(kMaxDeltaRowsCuda - (position + done) % kDeltaChunkCuda);
    DeltaKernelArgs part = part_of(a, done, static_cast<std::int32_t>(std::min<std::int64_t>(room, n - done)));
    part.scratch = scratch;
    rows.bf16 ? run_prompt<__nv_bfloat16>(part, position + done, form, context)
              : run_prompt<float>(part, position + done, form, context);
    done += part.n;
  }
}

}  // namespace mneme

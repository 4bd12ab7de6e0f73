#include "src/cuda/bulk_copy.cuh"
#include "src/kv/kv_codes.cuh"
#include "src/offload/device_cache_cuda.cuh"
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

// Address of the newest token in a cache slot, and the box of its page; null where it has none.
struct ResidentToken {
  std::byte *kv = nullptr, *box = nullptr;
};
__device__ __forceinline__ ResidentToken newest_token(const SlotStore& store, std::int64_t row, int kv_head,
                                                      int position) {
  if (store.kind == SlotStore::Kind::kNowhere || store.seq_slots[row] < 0) return {};
  const int seq_slot = store.seq_slots[row], page = position / kKvPageTokens;
  if (store.kind == SlotStore::Kind::kTables)
    return {block_at(store.tables, store.layer, seq_slot, kv_head, page) +
                position % kKvPageTokens * token_bytes(store.tables),
            nullptr};
  const DeviceCache& s = store.cache;
  const int first = kv_head * s.shared;  // spread_kernel has the others
  const std::int64_t index = slot_index(s, store.layer, seq_slot, first);
  return {s.n_slots == 0 ? nullptr
                         : resident_token(s, s.plans[seq_slot], store.layer, seq_slot, first, position, position + 1),
          s.index.boxes == nullptr ? nullptr : s.index.boxes + (index * s.max_pages + page) * s.box_bytes()};
}

// A head's query of the previous step, overwritten with this step's; null where nothing compares with it.
__device__ __forceinline__ __nv_bfloat16* last_query(const SlotStore& store, std::int64_t row, int head) {
  if (store.kind != SlotStore::Kind::kSlots || store.seq_slots[row] < 0) return nullptr;
  const DeviceCache& s = store.cache;
  const std::int64_t at =
      (static_cast<std::int64_t>(store.layer) * s.n_seq_slots + store.seq_slots[row]) * s.n_heads + head;
  return static_cast<__nv_bfloat16*>(s.selection.last_q) + at * s.head_dim;
}
// The query that this step's is compared with.
__device__ __forceinline__ const __nv_bfloat16* asked_query(const SlotStore& store, std::int64_t row, int head) {
  const DeviceCache& s = store.cache;
  if (s.selection.asked_q == nullptr || s.plans[store.seq_slots[row]].gate.reference == GateReference::kPrevious)
    return last_query(store, row, head);
  return static_cast<const __nv_bfloat16*>(s.selection.asked_q) +
         (last_query(store, row, head) - static_cast<const __nv_bfloat16*>(s.selection.last_q));
}
__device__ __forceinline__ float* last_cosine(const SlotStore& store, std::int64_t row, int head) {
  const DeviceCache& s = store.cache;
  return s.selection.cosine +
         (static_cast<std::int64_t>(store.layer) * s.n_seq_slots + store.seq_slots[row]) * s.n_heads + head;
}

// Address of a row's newest token in its ring; null: it has none.
__device__ __forceinline__ std::byte* ring_token(const KeyRing& ring, std::int64_t row, int kv_head, int position) {
  if (ring.pages == 0 || ring.seq_slots[row] < 0) return nullptr;
  return block_at(ring.tables, ring.layer, ring.seq_slots[row], kv_head, position / kKvPageTokens % ring.pages) +
         position % kKvPageTokens * token_bytes(ring.tables);
}

// Extends one channel of a box [hi: d | lo: d] from (`high`, `low`) by a key; the page's first key initialises it. NaN
// stays.
template <typename T>
__device__ __forceinline__ void grow_box(T* box, int d, int channel, T high, T low, T key, bool first) {
  box[channel] = first ? key : __hmax_nan(high, key);
  box[d + channel] = first ? key : __hmin_nan(low, key);
}

struct StoreArgs {
  QkvRows rows;
  KvTables tables;
  std::int32_t layer;
  __nv_bfloat16* q_out;
};

constexpr int kStoreWarps = 4;
constexpr int kMaxPairs = 4;  // per lane: head_dim up to 256

// Destination of a head of a row, and the previous step's data there. Looked up before grid_dependency_wait():
// afterwards it took 3 of 6 us.   kv, local: the token's [K | V]
template <typename Kv>
struct StoreTo {
  std::byte *kv = nullptr, *local = nullptr;
  ReadAs<Kv>* box = nullptr;
  bool opens = false, there = true;
  __nv_bfloat16* last_q = nullptr;
  std::uint32_t of_channel[kMaxPairs][2] = {};  // of a query the one to compare with, of a key its box: high, low << 16
};
template <typename Kv>
__device__ __forceinline__ StoreTo<Kv> store_to(const StoreArgs& a, std::int64_t row, int head) {
  const int lane = threadIdx.x % kWarp, n_kv = a.tables.n_kv_heads, d = a.tables.head_dim, half = d / 2;
  const bool is_q = head < a.rows.n_heads, is_v = head >= a.rows.n_heads + n_kv, neighbours = a.rows.neighbours;
  const std::int32_t position = a.rows.positions[row];
  StoreTo<Kv> to;
  const std::uint16_t *from = nullptr, *beside = nullptr;
  if (is_q) {
    to.last_q = last_query(a.rows.store, row, head);
    if (to.last_q != nullptr) from = reinterpret_cast<const std::uint16_t*>(asked_query(a.rows.store, row, head));
  } else {
    const std::int32_t slot = a.rows.slots == nullptr ? 0 : a.rows.slots[row];
    to.there = slot >= 0;
    if (!to.there) return to;
    const int kv_head = (head - a.rows.n_heads) % n_kv;
    const ResidentToken token = newest_token(a.rows.store, row, kv_head, position);
    to.kv = token.kv;
    if (to.kv == nullptr) {
      const int at = position - shift_of(a.tables, a.layer, slot, kv_head);
      to.kv =
          block_at(a.tables, a.layer, slot, kv_head, at / kKvPageTokens) + at % kKvPageTokens * token_bytes(a.tables);
    }
    to.local = ring_token(a.rows.local, row, kv_head, position);
    if (!is_v) to.box = reinterpret_cast<ReadAs<Kv>*>(token.box);
    to.opens = position % kKvPageTokens == 0;
    if (to.box != nullptr && !to.opens) from = reinterpret_cast<const std::uint16_t*>(to.box), beside = from + d;
  }
  if (from == nullptr) return to;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int p = lane + i * kWarp;
    if (p >= half) break;
    const int first = neighbours ? 2 * p : p, second = neighbours ? 2 * p + 1 : p + half;
    to.of_channel[i][0] = from[first], to.of_channel[i][1] = from[second];
    if (beside == nullptr) continue;
    to.of_channel[i][0] |= static_cast<std::uint32_t>(beside[first]) << 16;
    to.of_channel[i][1] |= static_cast<std::uint32_t>(beside[second]) << 16;
  }
  return to;
}
template <typename T>
__device__ __forceinline__ T of_bits(std::uint32_t bits) {
  const auto half = static_cast<std::uint16_t>(bits);
  return reinterpret_cast<const T&>(half);
}

// Stores a key or value in 8 bits, from its pairs before RoPE (x, y). Where keys are stored pre-RoPE, the ring's are
// rotated from the stored ones and quantised again.   behind: weights of rotated keys, or null
__device__ __forceinline__ void store_codes(const StoreArgs& a, std::int64_t row, bool is_v, const float* behind,
                                            const StoreTo<EightBit>& to, float (&x)[kMaxPairs], float (&y)[kMaxPairs]) {
  const int lane = threadIdx.x % kWarp, d = a.tables.head_dim, half = d / 2;
  const bool pre_rope = a.rows.pre_rope_keys;
  const float by = pre_rope && !is_v ? a.rows.key_scale : 1.0f;
  const CodeRow<kMaxPairs> codes{a.tables.codes, d, is_v, a.rows.neighbours, x, y};
  const auto rotate = [&] {
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
      if (lane + i * kWarp >= half) break;
      const float2 rotation = reinterpret_cast<const float2*>(a.rows.angles)[row * half + lane + i * kWarp];
      const float u = x[i], v = y[i];
      x[i] = u * rotation.x - v * rotation.y;
      y[i] = v * rotation.x + u * rotation.y;
      if (behind == nullptr) continue;
      const int p = lane + i * kWarp;
      x[i] *= behind[a.rows.neighbours ? 2 * p : p], y[i] *= behind[a.rows.neighbours ? 2 * p + 1 : p + half];
    }
  };
  if (!pre_rope && !is_v) rotate();
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) x[i] *= by, y[i] *= by;
  codes.write(to.kv, pre_rope && !is_v ? nullptr : to.local);
  if (pre_rope && !is_v && to.local != nullptr) {
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) x[i] /= by, y[i] /= by;
    rotate();
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i)  // as rotate_keys.h
      x[i] = widen(narrow<__nv_bfloat16>(x[i])), y[i] = widen(narrow<__nv_bfloat16>(y[i]));
    codes.write(to.local, nullptr);
  }
  if (pre_rope || to.box == nullptr) return;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int p = lane + i * kWarp;
    if (p >= half) break;
    for (int second = 0; second < 2; ++second) {
      const std::uint32_t was = to.of_channel[i][second];
      grow_box(to.box, d, a.rows.neighbours ? 2 * p + second : p + second * half, of_bits<__nv_bfloat16>(was),
               of_bits<__nv_bfloat16>(was >> 16), __float2bfloat16_rn(second == 0 ? x[i] : y[i]), to.opens);
    }
  }
}

// One warp per (row, head): heads of q, then of k, then of v. Lane i has pairs i, i + 32, ...
template <typename In, typename Kv>
__global__ void __launch_bounds__(kStoreWarps* kWarp) store_kernel(StoreArgs a) {
  launch_dependents();
  const int lane = threadIdx.x % kWarp, n_kv = a.tables.n_kv_heads, d = a.tables.head_dim, half = d / 2;
  const int heads = a.rows.n_heads + 2 * n_kv;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kStoreWarps + threadIdx.x / kWarp;
  const std::int64_t row = item / heads;
  const int head = static_cast<int>(item % heads);
  StoreTo<Kv> to;
  if (row < a.rows.n) to = store_to<Kv>(a, row, head);
  grid_dependency_wait();
  if (row >= a.rows.n || !to.there) return;
  const bool is_q = head < a.rows.n_heads, is_v = head >= a.rows.n_heads + n_kv;
  const In* in = static_cast<const In*>(a.rows.qkv) + (row * heads + head) * d;
  const bool neighbours = a.rows.neighbours;

  float x[kMaxPairs], y[kMaxPairs], squares = 0;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int p = lane + i * kWarp;
    if (p >= half) break;
    const int first = neighbours ? 2 * p : p, second = neighbours ? 2 * p + 1 : p + half;
    x[i] = widen(in[first]), y[i] = widen(in[second]);
    if (a.rows.bias != nullptr) {
      x[i] += a.rows.bias[static_cast<std::int64_t>(head) * d + first];
      y[i] += a.rows.bias[static_cast<std::int64_t>(head) * d + second];
    }
    squares += x[i] * x[i] + y[i] * y[i];
  }
  const float* weight = is_v ? nullptr : is_q ? a.rows.q_norm : a.rows.k_norm;
  float scale = 1;
  if (weight != nullptr) scale = rsqrtf(warp_sum(squares) / static_cast<float>(d) + a.rows.norm_eps);
  const float* const behind = a.rows.norm_behind ? weight : nullptr;
  float grown = is_q ? a.rows.query_scale : 1.0f;
  if (is_q && a.rows.temperature != 0)
    grown *= 1 + a.rows.temperature * log1pf(static_cast<float>(a.rows.positions[row] / a.rows.temperature_context));

  if constexpr (std::is_same_v<Kv, EightBit>) {
    if (!is_q) {
#pragma unroll
      for (int i = 0; i < kMaxPairs; ++i) {
        const int p = lane + i * kWarp;
        if (p >= half || weight == nullptr) break;
        const float *u = weight + (neighbours ? 2 * p : p), *v = weight + (neighbours ? 2 * p + 1 : p + half);
        x[i] *= behind == nullptr ? scale * *u : scale, y[i] *= behind == nullptr ? scale * *v : scale;
      }
      store_codes(a, row, is_v, behind, to, x, y);
      return;
    }
  }
  using Wide = ReadAs<Kv>;  // of 8 bits only queries are left here
  auto* const kv = reinterpret_cast<Wide*>(to.kv) + (is_v ? d : 0);
  auto* const local = to.local == nullptr ? nullptr : reinterpret_cast<Wide*>(to.local) + (is_v ? d : 0);
  Wide* const box = to.box;
  __nv_bfloat16* const last_q = to.last_q;
  float dot = 0, norm = 0, last_norm = 0;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int p = lane + i * kWarp;
    if (p >= half) break;
    const int first = neighbours ? 2 * p : p, second = neighbours ? 2 * p + 1 : p + half;
    float u = x[i], v = y[i];
    if (weight != nullptr && behind == nullptr) u *= scale * weight[first], v *= scale * weight[second];
    if (behind != nullptr) u *= scale, v *= scale;
    u *= grown, v *= grown;
    if (is_q && a.rows.remote_angles != nullptr) {
      const float2 rotation = reinterpret_cast<const float2*>(a.rows.remote_angles)[row * half + p];
      auto* remote_q = static_cast<__nv_bfloat16*>(a.rows.remote_q) + (row * a.rows.n_heads + head) * d;
      remote_q[first] = __float2bfloat16_rn(u * rotation.x - v * rotation.y);
      remote_q[second] = __float2bfloat16_rn(v * rotation.x + u * rotation.y);
    }
    if (!is_q && a.rows.pre_rope_keys) {  // stored pre-RoPE, and rotated from the stored value
      const float by = is_v ? 1.0f : a.rows.key_scale;
      kv[first] = narrow<Wide>(u * by), kv[second] = narrow<Wide>(v * by);
      if (local == nullptr) continue;
      u = widen(kv[first]) / by, v = widen(kv[second]) / by;
    }
    if (!is_v) {
      const float2 rotation = reinterpret_cast<const float2*>(a.rows.angles)[row * half + p];
      const float w = u * rotation.x - v * rotation.y;
      v = v * rotation.x + u * rotation.y;
      u = w;
      if (behind != nullptr) u *= behind[first], v *= behind[second];
    }
    if (is_q) {
      __nv_bfloat16* q = a.q_out + (row * a.rows.n_heads + head) * d;
      q[first] = __float2bfloat16_rn(u), q[second] = __float2bfloat16_rn(v);
      if (last_q == nullptr) continue;
      u = __bfloat162float(q[first]), v = __bfloat162float(q[second]);
      const float lu = __bfloat162float(of_bits<__nv_bfloat16>(to.of_channel[i][0])),
                  lv = __bfloat162float(of_bits<__nv_bfloat16>(to.of_channel[i][1]));
      dot += u * lu + v * lv, norm += u * u + v * v, last_norm += lu * lu + lv * lv;
      last_q[first] = q[first], last_q[second] = q[second];
      continue;
    }
    const Wide low = narrow<Wide>(u), high = narrow<Wide>(v);
    if (local != nullptr) local[first] = low, local[second] = high;
    if (a.rows.pre_rope_keys) continue;
    kv[first] = low, kv[second] = high;
    if (box == nullptr) continue;
    const auto grow = [&](int channel, std::uint32_t was, Wide key) {
      grow_box(box, d, channel, of_bits<Wide>(was), of_bits<Wide>(was >> 16), key, to.opens);
    };
    grow(first, to.of_channel[i][0], low), grow(second, to.of_channel[i][1], high);
  }
  if (last_q != nullptr) {
    dot = warp_sum(dot), norm = warp_sum(norm), last_norm = warp_sum(last_norm);
    const float both = norm * last_norm;
    if (lane == 0) *last_cosine(a.rows.store, row, head) = both == 0 ? 0.0f : dot * rsqrtf(norm) * rsqrtf(last_norm);
  }
}

// Copies a row's newest token from the first head of the cache slots that has it to the others (DeviceCache::shared): one
// warp per (row, head).
__global__ void __launch_bounds__(kStoreWarps* kWarp) spread_kernel(QkvRows rows) {
  launch_dependents();
  grid_dependency_wait();
  const SlotStore& store = rows.store;
  const DeviceCache& s = store.cache;
  const int item = static_cast<int>(blockIdx.x) * kStoreWarps + threadIdx.x / kWarp, row = item / s.n_kv_heads,
            head = item % s.n_kv_heads;
  if (row >= rows.n || store.seq_slots[row] < 0 || head % s.shared == 0) return;
  const int position = rows.positions[row], seq_slot = store.seq_slots[row];
  const auto token = [&](int of) {
    return resident_token(s, s.plans[seq_slot], store.layer, seq_slot, of, position, position + 1);
  };
  copy_token(token(head), token(head / s.shared * s.shared), static_cast<int>(s.token_bytes()));
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
  constexpr int kEach = kMaxSlotHeadDim / kWarp;
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
    const RowScale s = row_scale(codes, largest);
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

void store_qkv_cuda(const QkvRows& rows, const KvTables& tables, std::int32_t layer, void* q_out,
                    const CudaContext& context) {
  const std::int64_t items = static_cast<std::int64_t>(rows.n) * (rows.n_heads + 2 * tables.n_kv_heads);
  const dim3 grid(static_cast<unsigned>((items + kStoreWarps - 1) / kStoreWarps)), block(kStoreWarps * kWarp);
  StoreArgs args{rows, tables, layer, static_cast<__nv_bfloat16*>(q_out)};
  SlotStore& store = args.rows.store;
  if (store.kind == SlotStore::Kind::kSlots) store.cache = of_layer(store.cache, store.layer);
  const auto run = [&](void (*kernel)(StoreArgs)) { launch(context, "store_qkv", kernel, grid, block, 0, args); };
  with_kv_type(
      tables, [&]<typename Kv>(Kv) { run(rows.qkv_bf16 ? store_kernel<__nv_bfloat16, Kv> : store_kernel<float, Kv>); });
  const DeviceCache& s = store.cache;
  if (store.kind != SlotStore::Kind::kSlots || s.shared == 1 || s.n_slots == 0) return;
  launch(context, "spread_newest", spread_kernel,
         dim3(static_cast<unsigned>((rows.n * s.n_kv_heads + kStoreWarps - 1) / kStoreWarps)), block, 0, args.rows);
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

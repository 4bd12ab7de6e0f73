#include "src/kv/append/append_cuda.h"

#include "src/cuda/bulk_copy.cuh"
#include "src/kv/kv_codes.cuh"
#include "src/offload/device_cache_cuda.cuh"
#include "src/selection/gate/gate_cuda.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kMaxPairs = 4;                       // per lane: head_dim up to 256
constexpr int kMaxStoreWarps = kMaxSlotGroup + 2;  // queries of a KV head, its key and its value
constexpr int kSpreadWarps = 4;

struct StoreArgs {
  QkvRows rows;
  KvTables tables;
  std::int32_t layer;
  __nv_bfloat16* q_out;

  __device__ __forceinline__ int group() const { return rows.n_heads / tables.n_kv_heads; }
};

// What a warp stores: one of the query heads of a KV head, its key, or its value.
struct StoredHead {
  std::int64_t row;
  int kv_head;
  int number;  // among the row's heads: of q, then of k, then of v
  bool is_q, is_v;
};
__device__ __forceinline__ StoredHead stored_head(const StoreArgs& a) {
  const int warp = threadIdx.x / kWarp, n_kv = a.tables.n_kv_heads, group = a.group();
  StoredHead h;
  h.row = blockIdx.x / n_kv, h.kv_head = static_cast<int>(blockIdx.x) % n_kv;
  h.is_q = warp<group, h.is_v = warp> group;
  h.number = h.is_q ? h.kv_head * group + warp : a.rows.n_heads + (h.is_v ? n_kv : 0) + h.kv_head;
  return h;
}

// A lane's pairs of channels that RoPE rotates together: pairs lane, lane + 32, ...
struct Pairs {
  float x[kMaxPairs], y[kMaxPairs];
};
// Calls f(i, pair, first, second) for the lane's i-th pair, of these two channels.
template <typename F>
__device__ __forceinline__ void for_pairs(const StoreArgs& a, F&& f) {
  const int half = a.tables.head_dim / 2;
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) {
    const int pair = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
    if (pair >= half) break;
    f(i, pair, a.rows.neighbours ? 2 * pair : pair, a.rows.neighbours ? 2 * pair + 1 : pair + half);
  }
}
// A pair of a row, rotated by one of `angles`.
__device__ __forceinline__ float2 rotated(const StoreArgs& a, const float* angles, std::int64_t row, int pair, float u,
                                          float v) {
  const float2 rotation = reinterpret_cast<const float2*>(angles)[row * (a.tables.head_dim / 2) + pair];
  return {u * rotation.x - v * rotation.y, v * rotation.x + u * rotation.y};
}

// ---- where a head goes, and what it is compared with. Looked up before grid_dependency_wait(): afterwards it took 3
// of 6 us.

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
  const std::int64_t at = kept_index(s, store.layer, store.seq_slots[row]) * s.n_heads + head;
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

// Address of a row's newest token in its ring; null: it has none.
__device__ __forceinline__ std::byte* ring_token(const KeyRing& ring, std::int64_t row, int kv_head, int position) {
  if (ring.pages == 0 || ring.seq_slots[row] < 0) return nullptr;
  return block_at(ring.tables, ring.layer, ring.seq_slots[row], kv_head, position / kKvPageTokens % ring.pages) +
         position % kKvPageTokens * token_bytes(ring.tables);
}

// Destination of a head of a row, and the previous step's data there.   kv, local: the token's [K | V]
template <typename Kv>
struct StoreTo {
  std::byte *kv = nullptr, *local = nullptr;
  ReadAs<Kv>* box = nullptr;
  bool opens = false, stores = true;
  __nv_bfloat16* last_q = nullptr;
  std::uint32_t of_channel[kMaxPairs][2] = {};  // of a query the one to compare with, of a key its box: high, low << 16
};
template <typename Kv>
__device__ __forceinline__ StoreTo<Kv> store_to(const StoreArgs& a, const StoredHead& h) {
  const std::int32_t position = a.rows.positions[h.row];
  StoreTo<Kv> to;
  const std::uint16_t *from = nullptr, *beside = nullptr;
  if (h.is_q) {
    to.last_q = last_query(a.rows.store, h.row, h.number);
    if (to.last_q != nullptr) from = reinterpret_cast<const std::uint16_t*>(asked_query(a.rows.store, h.row, h.number));
  } else {
    const std::int32_t slot = a.rows.slots == nullptr ? 0 : a.rows.slots[h.row];
    to.stores = slot >= 0;
    if (!to.stores) return to;
    const ResidentToken token = newest_token(a.rows.store, h.row, h.kv_head, position);
    to.kv = token.kv;
    if (to.kv == nullptr) {
      const int at = position - shift_of(a.tables, a.layer, slot, h.kv_head);
      to.kv =
          block_at(a.tables, a.layer, slot, h.kv_head, at / kKvPageTokens) + at % kKvPageTokens * token_bytes(a.tables);
    }
    to.local = ring_token(a.rows.local, h.row, h.kv_head, position);
    if (!h.is_v) to.box = reinterpret_cast<ReadAs<Kv>*>(token.box);
    to.opens = position % kKvPageTokens == 0;
    if (to.box != nullptr && !to.opens)
      from = reinterpret_cast<const std::uint16_t*>(to.box), beside = from + a.tables.head_dim;
  }
  if (from == nullptr) return to;
  for_pairs(a, [&](int i, int, int first, int second) {
    to.of_channel[i][0] = from[first], to.of_channel[i][1] = from[second];
    if (beside == nullptr) return;
    to.of_channel[i][0] |= static_cast<std::uint32_t>(beside[first]) << 16;
    to.of_channel[i][1] |= static_cast<std::uint32_t>(beside[second]) << 16;
  });
  return to;
}
template <typename T>
__device__ __forceinline__ T of_bits(std::uint32_t bits) {
  const auto half = static_cast<std::uint16_t>(bits);
  return reinterpret_cast<const T&>(half);
}

// The gate that compares the cosines of a row's query heads, KV head by KV head; GateKind::kNone: none does.
__device__ __forceinline__ SelectionPlan::Gate cosine_gate(const SlotStore& store, std::int64_t row) {
  if (store.kind != SlotStore::Kind::kSlots || store.seq_slots[row] < 0) return {};
  const SelectionPlan& plan = store.cache.plans[store.seq_slots[row]];
  if (plan.schedule != ScheduleKind::kSpeculative || plan.gate.kind != GateKind::kCosine) return {};
  return plan.gate;
}

// ---- the head, up to RoPE

// Weights of the head's norm, or null.
__device__ __forceinline__ const float* norm_weight(const StoreArgs& a, const StoredHead& h) {
  return h.is_v ? nullptr : h.is_q ? a.rows.q_norm : a.rows.k_norm;
}

// The head with its bias, normed unless it has no norm; weights that apply to rotated values are left out.
template <typename In>
__device__ __forceinline__ Pairs normed_head(const StoreArgs& a, const StoredHead& h) {
  const int d = a.tables.head_dim, heads = a.rows.n_heads + 2 * a.tables.n_kv_heads;
  const In* in = static_cast<const In*>(a.rows.qkv) + (h.row * heads + h.number) * d;
  const float* const weight = norm_weight(a, h);
  Pairs v;
  float squares = 0;
  for_pairs(a, [&](int i, int, int first, int second) {
    v.x[i] = widen(in[first]), v.y[i] = widen(in[second]);
    if (a.rows.bias != nullptr) {
      v.x[i] += a.rows.bias[static_cast<std::int64_t>(h.number) * d + first];
      v.y[i] += a.rows.bias[static_cast<std::int64_t>(h.number) * d + second];
    }
    squares += v.x[i] * v.x[i] + v.y[i] * v.y[i];
  });
  if (weight == nullptr) return v;
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(d) + a.rows.norm_eps);
  for_pairs(a, [&](int i, int, int first, int second) {
    v.x[i] *= a.rows.norm_behind ? scale : scale * weight[first];
    v.y[i] *= a.rows.norm_behind ? scale : scale * weight[second];
  });
  return v;
}

// ---- queries

// What all queries of a row are multiplied by.
__device__ __forceinline__ float query_factor(const StoreArgs& a, std::int64_t row) {
  float factor = a.rows.query_scale;
  if (a.rows.temperature != 0)
    factor *= 1 + a.rows.temperature * log1pf(static_cast<float>(a.rows.positions[row] / a.rows.temperature_context));
  return factor;
}

// Writes a query, rotated, and where a method compares it, over the one of the step before. Returns its cosine with the
// one to compare with.
template <typename Kv>
__device__ __forceinline__ float store_query(const StoreArgs& a, const StoredHead& h, const StoreTo<Kv>& to,
                                             const Pairs& normed) {
  const float factor = query_factor(a, h.row);
  const float* const behind = a.rows.norm_behind ? norm_weight(a, h) : nullptr;
  const std::int64_t at = (h.row * a.rows.n_heads + h.number) * a.tables.head_dim;
  __nv_bfloat16* const q = a.q_out + at;
  float dot = 0, norm = 0, last_norm = 0;
  for_pairs(a, [&](int i, int pair, int first, int second) {
    float u = normed.x[i] * factor, v = normed.y[i] * factor;
    if (a.rows.remote_angles != nullptr) {
      const float2 remote = rotated(a, a.rows.remote_angles, h.row, pair, u, v);
      auto* remote_q = static_cast<__nv_bfloat16*>(a.rows.remote_q) + at;
      remote_q[first] = __float2bfloat16_rn(remote.x), remote_q[second] = __float2bfloat16_rn(remote.y);
    }
    const float2 after = rotated(a, a.rows.angles, h.row, pair, u, v);
    u = after.x, v = after.y;
    if (behind != nullptr) u *= behind[first], v *= behind[second];
    q[first] = __float2bfloat16_rn(u), q[second] = __float2bfloat16_rn(v);
    if (to.last_q == nullptr) return;
    u = __bfloat162float(q[first]), v = __bfloat162float(q[second]);
    const float lu = __bfloat162float(of_bits<__nv_bfloat16>(to.of_channel[i][0])),
                lv = __bfloat162float(of_bits<__nv_bfloat16>(to.of_channel[i][1]));
    dot += u * lu + v * lv, norm += u * u + v * v, last_norm += lu * lu + lv * lv;
    to.last_q[first] = q[first], to.last_q[second] = q[second];
  });
  if (to.last_q == nullptr) return 0;
  dot = warp_sum(dot), norm = warp_sum(norm), last_norm = warp_sum(last_norm);
  return norm * last_norm == 0 ? 0.0f : dot * rsqrtf(norm) * rsqrtf(last_norm);
}

// Keeps the cosine of a query, and evaluates the KV head's gate. Called by the warps of all its query heads.
//   cosines  [group], in shared memory
__device__ __forceinline__ void take_cosine(const StoreArgs& a, const StoredHead& h, const SelectionPlan::Gate& gate,
                                            float cosine, float* cosines) {
  const SlotStore& store = a.rows.store;
  const int seq_slot = store.seq_slots[h.row], group = a.group(), warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    cosines[warp] = cosine;
    store.cache.selection.cosine[kept_index(store.cache, store.layer, seq_slot) * store.cache.n_heads + h.number] =
        cosine;
  }
  if (gate.kind == GateKind::kNone) return;
  asm volatile("bar.sync 1, %0;" ::"r"(group * kWarp) : "memory");  // without the warps of key and value
  if (warp == 0) publish_cosine_gate(store.cache, gate, store.layer, seq_slot, h.kv_head, cosines, group);
}

// ---- keys and values

// Extends one channel of a box [hi: d | lo: d] from (`high`, `low`) by a key; the page's first key initialises it. NaN
// stays.
template <typename T>
__device__ __forceinline__ void grow_box(T* box, int d, int channel, T high, T low, T key, bool first) {
  box[channel] = first ? key : __hmax_nan(high, key);
  box[d + channel] = first ? key : __hmin_nan(low, key);
}

// Stores a key or value in 16 bits. Where keys are stored pre-RoPE, the ring's are rotated from the stored ones.
template <typename Kv>
__device__ __forceinline__ void store_halves(const StoreArgs& a, const StoredHead& h, const StoreTo<Kv>& to,
                                             const Pairs& normed) {
  using Wide = ReadAs<Kv>;
  const int d = a.tables.head_dim;
  const float* const behind = a.rows.norm_behind ? norm_weight(a, h) : nullptr;
  auto* const kv = reinterpret_cast<Wide*>(to.kv) + (h.is_v ? d : 0);
  auto* const local = to.local == nullptr ? nullptr : reinterpret_cast<Wide*>(to.local) + (h.is_v ? d : 0);
  for_pairs(a, [&](int i, int pair, int first, int second) {
    float u = normed.x[i], v = normed.y[i];
    if (a.rows.pre_rope_keys) {
      const float by = h.is_v ? 1.0f : a.rows.key_scale;
      kv[first] = narrow<Wide>(u * by), kv[second] = narrow<Wide>(v * by);
      if (local == nullptr) return;
      u = widen(kv[first]) / by, v = widen(kv[second]) / by;
    }
    if (!h.is_v) {
      const float2 after = rotated(a, a.rows.angles, h.row, pair, u, v);
      u = after.x, v = after.y;
      if (behind != nullptr) u *= behind[first], v *= behind[second];
    }
    const Wide low = narrow<Wide>(u), high = narrow<Wide>(v);
    if (local != nullptr) local[first] = low, local[second] = high;
    if (a.rows.pre_rope_keys) return;
    kv[first] = low, kv[second] = high;
    if (to.box == nullptr) return;
    const auto grow = [&](int channel, std::uint32_t was, Wide key) {
      grow_box(to.box, d, channel, of_bits<Wide>(was), of_bits<Wide>(was >> 16), key, to.opens);
    };
    grow(first, to.of_channel[i][0], low), grow(second, to.of_channel[i][1], high);
  });
}

// Stores a key or value in 8 bits. Where keys are stored pre-RoPE, the ring's are rotated from the stored ones and
// quantised again.
__device__ __forceinline__ void store_codes(const StoreArgs& a, const StoredHead& h, const StoreTo<EightBit>& to,
                                            Pairs& v) {
  const bool pre_rope = a.rows.pre_rope_keys;
  const float by = pre_rope && !h.is_v ? a.rows.key_scale : 1.0f;
  const float* const behind = a.rows.norm_behind ? norm_weight(a, h) : nullptr;
  const CodePairs<kMaxPairs> codes{a.tables.codes, a.tables.head_dim, h.is_v, a.rows.neighbours, v.x, v.y};
  const auto rotate = [&] {
    for_pairs(a, [&](int i, int pair, int first, int second) {
      const float2 after = rotated(a, a.rows.angles, h.row, pair, v.x[i], v.y[i]);
      v.x[i] = after.x, v.y[i] = after.y;
      if (behind != nullptr) v.x[i] *= behind[first], v.y[i] *= behind[second];
    });
  };
  if (!pre_rope && !h.is_v) rotate();
#pragma unroll
  for (int i = 0; i < kMaxPairs; ++i) v.x[i] *= by, v.y[i] *= by;
  codes.write(to.kv, pre_rope && !h.is_v ? nullptr : to.local);
  if (pre_rope && !h.is_v && to.local != nullptr) {
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) v.x[i] /= by, v.y[i] /= by;
    rotate();
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i)  // as rotate_keys.h
      v.x[i] = widen(narrow<__nv_bfloat16>(v.x[i])), v.y[i] = widen(narrow<__nv_bfloat16>(v.y[i]));
    codes.write(to.local, nullptr);
  }
  if (pre_rope || to.box == nullptr) return;
  for_pairs(a, [&](int i, int, int first, int second) {
    const auto grow = [&](int channel, std::uint32_t was, float key) {
      grow_box(to.box, a.tables.head_dim, channel, of_bits<__nv_bfloat16>(was), of_bits<__nv_bfloat16>(was >> 16),
               __float2bfloat16_rn(key), to.opens);
    };
    grow(first, to.of_channel[i][0], v.x[i]), grow(second, to.of_channel[i][1], v.y[i]);
  });
}

// One thread block per (row, KV head), so that it has all cosines of a KV head's gate: a warp for each query head, one
// for the key, one for the value.
template <typename In, typename Kv>
__global__ void __launch_bounds__(kMaxStoreWarps* kWarp) store_kernel(StoreArgs a) {
  __shared__ float cosines[kMaxSlotGroup];
  launch_dependents();
  const StoredHead head = stored_head(a);
  const StoreTo<Kv> to = store_to<Kv>(a, head);
  const SelectionPlan::Gate gate = cosine_gate(a.rows.store, head.row);
  grid_dependency_wait();
  if (!to.stores) return;
  Pairs normed = normed_head<In>(a, head);
  if (head.is_q) {
    const float cosine = store_query(a, head, to, normed);
    if (to.last_q != nullptr) take_cosine(a, head, gate, cosine, cosines);
  } else if constexpr (std::is_same_v<Kv, EightBit>) {
    store_codes(a, head, to, normed);
  } else {
    store_halves(a, head, to, normed);
  }
}

// Copies a row's newest token from the first head of the cache slots that has it to the others (DeviceCache::shared):
// one warp per (row, head).
__global__ void __launch_bounds__(kSpreadWarps* kWarp) spread_kernel(QkvRows rows) {
  launch_dependents();
  grid_dependency_wait();
  const SlotStore& store = rows.store;
  const DeviceCache& s = store.cache;
  const int item = static_cast<int>(blockIdx.x) * kSpreadWarps + threadIdx.x / kWarp, row = item / s.n_kv_heads,
            head = item % s.n_kv_heads;
  if (row >= rows.n || store.seq_slots[row] < 0 || head % s.shared == 0) return;
  const int position = rows.positions[row], seq_slot = store.seq_slots[row];
  const auto token = [&](int of) {
    return resident_token(s, s.plans[seq_slot], store.layer, seq_slot, of, position, position + 1);
  };
  copy_token(token(head), token(head / s.shared * s.shared), static_cast<int>(s.token_bytes()));
}

}  // namespace

void store_qkv_cuda(const QkvRows& rows, const KvTables& tables, std::int32_t layer, void* q_out,
                    const CudaContext& context) {
  const int group = rows.n_heads / tables.n_kv_heads;
  StoreArgs args{rows, tables, layer, static_cast<__nv_bfloat16*>(q_out)};
  SlotStore& store = args.rows.store;
  if (store.kind == SlotStore::Kind::kSlots) store.cache = of_layer(store.cache, store.layer);
  const dim3 grid(static_cast<unsigned>(rows.n) * static_cast<unsigned>(tables.n_kv_heads)),
      block(static_cast<unsigned>(group + 2) * kWarp);
  const auto run = [&](void (*kernel)(StoreArgs)) { launch(context, "store_qkv", kernel, grid, block, 0, args); };
  with_kv_type(
      tables, [&]<typename Kv>(Kv) { run(rows.qkv_bf16 ? store_kernel<__nv_bfloat16, Kv> : store_kernel<float, Kv>); });
  const DeviceCache& s = store.cache;
  if (store.kind != SlotStore::Kind::kSlots || s.shared == 1 || s.n_slots == 0) return;
  launch(context, "spread_newest", spread_kernel,
         dim3(static_cast<unsigned>((rows.n * s.n_kv_heads + kSpreadWarps - 1) / kSpreadWarps)),
         dim3(kSpreadWarps * kWarp), 0, args.rows);
}

}  // namespace mneme

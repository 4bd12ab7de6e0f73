#include "apps/bench/device/outcomes_cuda.h"

#include <algorithm>
#include <cmath>

#include "src/selection/topk/select_skeleton.cuh"
#include "src/selection/topk/topk_marks.cuh"

namespace mneme {
namespace {

using namespace cuda;  // NOLINT

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

struct OutcomeArgs {
  DeviceCache s;  // of_layer()
  SlotRows rows;
  KvTables pages;
  int layer, slot_layer;
  bool by_layer, listed;
  OutcomeRates rates;
};

// Mixes two values; a pure function of its arguments.
__device__ std::uint32_t hash_random(std::uint32_t a, std::uint32_t b) {
  std::uint64_t x = (static_cast<std::uint64_t>(a) << 32 | b) + 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 32);
}

// Whether the gate of this step at `at`, an index of its own, flags.
__device__ bool drawn_flag(const OutcomeArgs& p, const SlotRow& r, std::int64_t at) {
  const std::uint32_t random = hash_random(static_cast<std::uint32_t>(r.length), static_cast<std::uint32_t>(at));
  return static_cast<float>(random >> 8) * 0x1p-24f < p.rates.correction;
}

// A selection is a window on a permutation of the candidates, along which it moves, so that none returns soon.
struct Walk {
  std::uint32_t m, step, first;  // candidates on the walk: as many over many steps
  double part;                   // 1 / m

  // Of n > 0 candidates about k are selected, after `made` selections of about `each`.
  __device__ Walk(int n, int k, int made, float turnover, double each, std::uint32_t seed) {
    const int piece = min(128, max((1 << (31 - __clz(n))) / 2, 1));
    m = static_cast<std::uint32_t>(max(n / piece * piece, k));
    step = m % 7919 == 0 ? 7907 : 7919;
    const auto moved = static_cast<std::uint64_t>(static_cast<double>(made) * static_cast<double>(turnover) * each);
    first = static_cast<std::uint32_t>((moved + hash_random(seed, 7)) % m);
    part = 1.0 / m;
  }
  // The j-th best, j < m.
  __device__ int at(int j) const {
    std::uint32_t i = first + static_cast<std::uint32_t>(j);
    if (i >= m) i -= m;
    // x % m without a 64-bit division, which would take longer than everything else here.
    const std::uint64_t x = static_cast<std::uint64_t>(i) * step;
    auto rest = static_cast<std::int64_t>(x) - static_cast<std::int64_t>(static_cast<double>(x) * part) * m;
    if (rest < 0) rest += m;
    if (rest >= m) rest -= m;
    return static_cast<int>(rest);
  }
};

// Calls put(at, i) for the best k of n candidates, in order of i. Called by the whole block.
//   mask  [(n + 31) / 32] in shared memory
template <typename F>
__device__ void put_ascending(const Walk& walk, int n, int k, std::uint32_t* mask, int (&of_warps)[kWarps], F&& put) {
  for (int i = threadIdx.x; i < (n + 31) / 32; i += kThreads) mask[i] = 0;
  __syncthreads();
  for (int j = threadIdx.x; j < k; j += kThreads) topk::set_bit(mask, walk.at(j));
  __syncthreads();
  topk::write_marked(mask, n, of_warps, 0, put);
  __syncthreads();
}

// Of a layer's gate, which the selection evaluates, the cosines: NaN flags and infinity does not, whatever the pool and
// the threshold.
__global__ void __launch_bounds__(kThreads) gates_kernel(OutcomeArgs p) {
  launch_dependents();
  grid_dependency_wait();
  const SlotRow r = row_at(p.s, p.rows, blockIdx.x);
  if (r.seq_slot < 0) return;
  const std::int64_t row = kept_index(p.s, p.slot_layer, r.seq_slot);
  if (r.plan.schedule == ScheduleKind::kBoundary) {
    for (int h = threadIdx.x; h < p.s.n_heads; h += kThreads)
      p.s.selection.cosine[row * p.s.n_heads + h] = drawn_flag(p, r, row) ? NAN : INFINITY;
    return;
  }
  const auto index = [&](int kv_head) { return slot_index(p.s, p.slot_layer, r.seq_slot, kv_head); };
  for (int h = threadIdx.x; h < p.s.n_kv_heads; h += kThreads)
    p.s.selection.flags[index(h)] = drawn_flag(p, r, index(h / p.s.shared * p.s.shared)) ? 1 : 0;
}

// Whether the row's KV heads selected, or may have: those that did not read nothing of what is overwritten.
__device__ bool selected(const OutcomeArgs& p, const SlotRow& r, SelectWhen when) {
  return selects(r, when, r.sparse && any_needs_now(p.s, r, p.slot_layer));
}

// Tokens of list units: those of the best units, the best unit's first.
__device__ void write_members(const OutcomeArgs& p, const SlotRow& r, std::int64_t index, int wanted,
                              std::int32_t* ids) {
  __shared__ int begins[kThreads], sizes[kThreads], to[kThreads], of_warps[kWarps];
  __shared__ int written;
  const int tid = threadIdx.x, n = __ldcg(p.s.index.lists.n_units + index);
  if (n == 0) return;
  const PageRegion region = region_of(p.s, r.plan, p.slot_layer, r.seq_slot, r.length);
  const int total = max(1, region.window - region.first),
            made = p.s.selection.kept == nullptr
                       ? r.length
                       : __ldcg(&p.s.selection.kept[kept_index(p.s, p.slot_layer, r.seq_slot)].n_made);
  const Walk walk(n, 0, made, p.rates.turnover, static_cast<double>(wanted) * n / total,
                  static_cast<std::uint32_t>(index));
  const std::int32_t* ends = p.s.index.lists.ends + index * p.s.index.lists.max_units;
  const std::int32_t* members = p.s.index.lists.members + index * p.s.index.lists.max_tokens;
  for (int first = 0, done = 0; first < n && done < wanted; first += kThreads) {
    const int j = first + tid, unit = j >= n ? 0 : j < static_cast<int>(walk.m) ? walk.at(j) : j;
    begins[tid] = unit == 0 ? 0 : __ldcg(ends + unit - 1);
    sizes[tid] = j >= n ? 0 : __ldcg(ends + unit) - begins[tid];
    to[tid] = done + block_exclusive_scan(sizes[tid], of_warps);
    if (tid == kThreads - 1) written = to[tid] + sizes[tid];
    __syncthreads();
    for (int u = tid / kWarp; u < min(kThreads, n - first); u += kWarps)
      for (int i = tid % kWarp; i < sizes[u] && to[u] + i < wanted; i += kWarp)
        ids[to[u] + i] = __ldcg(members + begins[u] + i);
    done = written;
    __syncthreads();
  }
}

// The selection of a KV head, n ids.
__device__ void write_ids(const OutcomeArgs& p, const SlotRow& r, SelectWhen when, std::int64_t index, int n,
                          std::uint32_t* mask, std::int32_t* ids) {
  __shared__ int of_warps[kWarps];
  const Candidates of = candidates_of(r.plan, r.length + (when == SelectWhen::kNext ? 1 : 0));
  const int k = min(n / of.each, of.n);
  if (k <= 0) return;
  const Walk walk(of.n, k, r.length, p.rates.turnover, p.by_layer ? k : r.plan.region.n_select / of.each,
                  static_cast<std::uint32_t>(p.by_layer ? p.slot_layer : index));
  // As unfused_item.cuh: a kept selection of tokens is ranked.
  if (of.each == 1 && r.plan.schedule == ScheduleKind::kBoundary && r.plan.units.tokens == 1) {
    for (int j = threadIdx.x; j < k; j += kThreads) ids[j] = of.first + walk.at(j);
    return;
  }
  put_ascending(walk, of.n, k, mask, of_warps, [&](int at, int i) {
    for (int e = 0; e < of.each; ++e) ids[at * of.each + e] = (of.first + i) * of.each + e;
  });
}

// `listed` of a selection for this step, between sinks and window.
__device__ void list_ids(const OutcomeArgs& p, const SlotRow& r, int kv_head, std::int64_t index, int n,
                         const std::int32_t* ids) {
  if (r.plan.schedule == ScheduleKind::kSpeculative && !needs_now(p.s, r, p.slot_layer, kv_head)) return;
  std::int32_t* listed = p.s.slots.listed + index * p.s.max_listed + page_region(r.plan, r.length).first;
  for (int i = threadIdx.x; i < n; i += kThreads)
    listed[i] = p.s.unit_tokens == 1 ? unit_token(p.pages, 1, p.layer, r.seq_slot, kv_head, ids[i])
                                     : block_number(p.pages, p.layer, r.seq_slot, kv_head, ids[i]);
}

__global__ void __launch_bounds__(kThreads) selection_kernel(OutcomeArgs p, SelectWhen when) {
  extern __shared__ __align__(16) std::uint32_t mask[];  // of a KV head's candidates
  launch_dependents();
  grid_dependency_wait();
  const int row = blockIdx.x / p.s.n_kv_heads, kv_head = blockIdx.x % p.s.n_kv_heads;
  const SlotRow r = row_at(p.s, p.rows, row);
  if (r.seq_slot < 0 || !r.sparse || r.plan.schedule == ScheduleKind::kNone) return;
  const std::int64_t index = slot_index(p.s, p.slot_layer, r.seq_slot, kv_head);
  if (p.rates.correction >= 0 && when == SelectWhen::kNow && by_mass(r) && !p.listed && threadIdx.x == 0)
    p.s.selection.flags[index] = drawn_flag(p, r, index) ? 1 : 0;
  if (p.rates.turnover < 0 || !selected(p, r, when)) return;
  const int n = p.s.selection.n[static_cast<int>(when)][index];
  std::int32_t* ids = p.s.selection.ids[static_cast<int>(when)] + index * p.s.max_listed;
  if (p.s.index.lists.max_units > 0) {
    write_members(p, r, index, n, ids);
  } else {
    write_ids(p, r, when, index, n, mask, ids);
  }
  __syncthreads();
  if (p.listed && when == SelectWhen::kNow) list_ids(p, r, kv_head, index, n, ids);
}

struct WindowArgs {
  SelectWindows c;
  int first_row;
  float turnover;
};

__global__ void __launch_bounds__(kThreads) windows_kernel(WindowArgs p) {
  extern __shared__ __align__(16) std::uint32_t mask[];
  __shared__ int of_warps[kWarps];
  launch_dependents();
  grid_dependency_wait();
  const SelectionWindow w = p.c.windows[blockIdx.x];
  const int k = p.c.n_units[blockIdx.x];
  if (k <= 0 || w.n_candidates <= 0) return;
  const Walk walk(w.n_candidates, k, (p.first_row + w.row) / w.n_rows, p.turnover, k,
                  static_cast<std::uint32_t>(p.c.keys.layer));
  std::int32_t* units = p.c.units + static_cast<std::int64_t>(blockIdx.x) * p.c.unit_stride;
  put_ascending(walk, w.n_candidates, k, mask, of_warps, [&](int at, int i) { units[at] = p.c.first_unit + i; });
}

OutcomeArgs args_of(const StepObserver::Layer& l, const OutcomeRates& rates) {
  return {of_layer(l.cache, l.slot_layer), l.rows, l.pages, l.layer, l.slot_layer, l.by_layer, l.listed, rates};
}

std::size_t mask_bytes(std::int64_t n) {
  return static_cast<std::size_t>((n + 31) / 32) * 4;
}

}  // namespace

void inject_gates_cuda(const StepObserver::Layer& layer, const OutcomeRates& rates, const CudaContext& context) {
  launch(context, "inject_gates", gates_kernel, dim3(static_cast<unsigned>(layer.rows.n)), dim3(kThreads), 0,
         args_of(layer, rates));
}

void inject_selection_cuda(const StepObserver::Layer& layer, SelectWhen when, const OutcomeRates& rates,
                           const CudaContext& context) {
  launch_shared<selection_kernel>(
      context, "inject_selection", dim3(static_cast<unsigned>(layer.rows.n * layer.cache.n_kv_heads)), dim3(kThreads),
      layer.cache.index.lists.max_units > 0 ? 0 : mask_bytes(layer.cache.max_units()), args_of(layer, rates), when);
}

void inject_windows_cuda(const SelectWindows& windows, std::int32_t first_row, float turnover,
                         const CudaContext& context) {
  if (windows.n_windows == 0) return;
  launch_shared<windows_kernel>(context, "inject_windows", dim3(static_cast<unsigned>(windows.n_windows)),
                                dim3(kThreads), mask_bytes(windows.n_candidates),
                                WindowArgs{windows, first_row, turnover});
}

}  // namespace mneme

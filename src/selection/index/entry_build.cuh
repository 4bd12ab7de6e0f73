// The kernels around what builds an entry, for every index: of a prompt's chunk, or of the entry that a step's token
// completes. A thread block has one entry of one KV head.
//
// Build<T>, T the type of the keys: kThreads, its most threads; and build(cache, index, number, n, token) of n tokens,
// token: i -> address of the entry's i-th token.
#pragma once

#include "src/kv/kv_codes.cuh"
#include "src/offload/device_cache_cuda.cuh"

namespace mneme::cuda {

struct BuildArgs {
  DeviceCache s;
  KvTables keys;
  BuildEntries b;
};
template <typename B>
__global__ void __launch_bounds__(B::kThreads) build_entries_kernel(BuildArgs p) {
  grid_dependency_wait();
  const IndexedLayer& of = p.b.of;
  const int kv_head = blockIdx.y, number = p.b.first + blockIdx.x, tokens = p.s.index.entries.tokens,
            first = number * tokens, n = p.b.n_tokens > 0 ? min(tokens, p.b.n_tokens - first) : tokens;
  B::build(p.s, slot_index(p.s, of.slot_layer, of.seq_slot, kv_head), number, n,
           [&](int i) { return token_at(p.keys, of.key_layer, of.key_slot, kv_head, first + i); });
}

struct CloseArgs {
  DeviceCache s;
  KvTables pages;
  CloseEntries c;
};
// The entry of a row and layer whose last token is the step's, if there is one.
template <typename B>
__global__ void __launch_bounds__(B::kThreads) close_entries_kernel(CloseArgs p) {
  const DeviceCache& s = p.s;
  // Scans of 1-bit keys read them before they wait (SelectTokens::early): no kernel behind this one may start before it
  // ends.
  if (s.index.keys.codes == nullptr) launch_dependents();
  grid_dependency_wait();
  const int seq_slot = p.c.rows.seq_slots[blockIdx.x], length = p.c.rows.lengths[blockIdx.x], kv_head = blockIdx.y,
            layer = p.c.first + static_cast<int>(blockIdx.z), tokens = s.index.entries.tokens;
  if (seq_slot < 0 || length % tokens != 0) return;
  const SelectionPlan& plan = s.plans[kept_index(s, layer, seq_slot)];
  // Tokens of the window are in their cache slots; where it is shorter than an entry, the others are in the pages.
  const int first = length - tokens, from = s.n_slots == 0 ? length
                                            : length <= plan.region.budget
                                                ? 0
                                                : length - window_slots(plan) * s.unit_tokens;
  B::build(s, slot_index(s, layer, seq_slot, kv_head), first / tokens, tokens, [&](int i) {
    const int at = first + i;
    return at >= from ? resident_token(s, plan, layer, seq_slot, kv_head, at, length)
                      : token_at(p.pages, p.c.model_layers[layer], seq_slot, kv_head, at);
  });
}

// threads: of a block; shared: bytes of dynamic shared memory.
template <template <typename> typename Build>
void build_entries(const char* name, const BuildArgs& p, int threads, std::size_t shared, const CudaContext& context) {
  if (p.b.stop <= p.b.first) return;
  with_kv_type(p.s, [&]<typename T>(T) {
    launch_shared<build_entries_kernel<Build<T>>>(context, name, grid_of(p.b.stop - p.b.first, p.s.n_kv_heads),
                                                  dim3(threads), shared, p);
  });
}
template <template <typename> typename Build>
void close_entries(const char* name, const CloseArgs& p, int threads, std::size_t shared, const CudaContext& context) {
  with_kv_type(p.s, [&]<typename T>(T) {
    launch_shared<close_entries_kernel<Build<T>>>(
        context, name, grid_of(p.c.rows.n, p.s.n_kv_heads, p.c.stop - p.c.first), dim3(threads), shared, p);
  });
}

}  // namespace mneme::cuda

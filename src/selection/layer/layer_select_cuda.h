// Selection of pages for all heads of a layer together, on the device. Every key of a page represents it, and the best
// one counts (KeyMatch::kBest of recipe.h, with as many keys as a page has tokens).
//
//   score(page) = max over its tokens of probe . key / |key|, over all KV heads concatenated
//
// The probe has the queries of a GQA group added up, which gives the same dot product.
//
// Numerics  a probe is split into two parts of the dtype of the keys; f32 sums.
// Ties      the later page.   NaN  a token with a NaN score counts only if the page has no other; such pages rank last.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstdint>

#include "src/cuda/context.h"
#include "src/offload/device_cache_cuda.h"

namespace mneme {

inline constexpr std::int32_t kKeyChunkPages = 64;

// Keys of a layer's pages: in the pages themselves, or copied to chunks of kKeyChunkPages pages.
struct LayerKeys {
  KvTables pages;          // used where chunks is null, with the layer below
  std::int32_t layer = 0;  // index in `pages` or in chunks
  // [seq slots][max_chunks] pointers to [layers][KV heads][kKeyChunkPages * 32][D]; null: keys are read from `pages`.
  std::byte* const* chunks = nullptr;
  std::int32_t max_chunks = 0;
};
// Bytes of a chunk.
std::size_t key_chunk_bytes(std::int32_t n_layers, std::int32_t n_kv_heads, std::int32_t head_dim);
// Copies keys of pages [first, stop) of sequence `slot` and layer from_layer of `from` into the chunks of a sequence
// slot.
void copy_keys_cuda(const KvTables& from, std::int32_t slot, std::int32_t from_layer, const LayerKeys& to,
                    std::int32_t seq_slot, std::int32_t first, std::int32_t stop, const CudaContext& context);

// A window of a prompt.
struct SelectionWindow {
  std::int32_t row = 0, n_rows = 0;  // rows of the chunk
  std::int32_t n_candidates = 0;     // pages first_unit .. first_unit + n_candidates - 1
  std::int32_t n_select = 0;         // at most n_candidates; 0: no selection
};

// A shared layer budget by score entropy (src/selection/layer/entropy_cut.h), of one sequence slot in one step.
struct LayerCut {
  std::int32_t k = 0;         // units per layer, on average; 0: the rules' n_select
  std::int32_t n_layers = 0;  // layers that share the budget
  bool reversed = false;
};

// What a window has selected where layers share a budget: its normalised entropy, -1 where nothing was scored.
struct WindowShare {
  double theta = -1;
  std::int32_t units = 0;
};

// The shared budget of a layer of a chunk's windows, each of which is a step of its own.
//
//   probes  [n_windows, heads * D] f32: not added up over groups; their lengths turn scores into cosines
//   later   sum of the mean entropies of the layers after this one
//   pools   [n_windows] f64: units left, carried from layer to layer
//   shares  [n_windows] out
struct WindowCut {
  LayerCut rules;  // k 0: every window selects SelectionWindow::n_select
  std::int32_t layer = 0;
  const float* probes = nullptr;
  std::int32_t width = 0;  // heads * D
  double later = 0;
  double* pools = nullptr;
  WindowShare* shares = nullptr;
};

// Selections of the windows of one prompt chunk.
//
//   probes   [n_windows, KV heads * D] f32
//   ranks    [n_windows, rank_stride] u32: scratch; rank_stride a multiple of 4
//   units    [n_windows, unit_stride] i32 out, ascending; n_units [n_windows] i32 out
struct SelectWindows {
  LayerKeys keys;
  const float* probes = nullptr;
  const SelectionWindow* windows = nullptr;
  std::int32_t n_windows = 0, n_heads = 0;
  std::int32_t seq_slot = 0, first_unit = 0, n_candidates = 0;  // the largest of any window
  std::uint32_t* ranks = nullptr;
  std::int64_t rank_stride = 0;
  std::int32_t *units = nullptr, *n_units = nullptr;
  std::int32_t unit_stride = 0;
  WindowCut cut;
};
void select_windows_cuda(const SelectWindows& c, const CudaContext& context);

// Selections of decode rows, one row per sequence: writes Selections::ids[0] of every KV head, and how many
// tokens of the list are remote. Rows within their budget select nothing. Without cache slots (keys in `pages`) it also
// writes CacheSlots::listed, as blocks of the pool: sinks and selected pages, or all pages within the budget.
//
//   remote_q   [rows, heads * D] bf16: queries rotated for the remote part
//   ranks      [rows, rank_stride] u32: scratch
//   remote_to  [rows] i32 out: tokens of sinks and selection
//   cuts       [seq slots]; later [seq slots, n_layers] f64: sums of the mean entropies of the layers after each
//   pools      [seq slots] f64: units left, carried from layer to layer
//   thetas     [seq slots, n_layers] f64 out: normalised entropies; -1 where nothing was scored
struct SelectLayer {
  LayerKeys keys;
  SlotRows rows;
  const void* remote_q = nullptr;
  std::uint32_t* ranks = nullptr;
  std::int64_t rank_stride = 0;
  std::int32_t* remote_to = nullptr;
  const LayerCut* cuts = nullptr;
  const double* later = nullptr;
  double *pools = nullptr, *thetas = nullptr;
};
// slot_layer: index in `slots`, and among the layers that share the budget.
void select_layer_cuda(const SelectLayer& c, const DeviceCache& cache, std::int32_t slot_layer,
                       const CudaContext& context);

// Fetches pages that windows selected from their sequence's pages into another table (sequence 0, layer 0), each page
// once; pages from `there` on are resident.
//
//   stamps  [pages] i32: `stamp` marks fetched pages; larger than any before
//   list    [1 + pages] i32: scratch
struct FetchUnits {
  const std::int32_t *units = nullptr, *n_units = nullptr;
  std::int32_t unit_stride = 0, n_windows = 0, there = 0;
  KvTables from, to;
  std::int32_t from_slot = 0, from_layer = 0;
  std::int32_t *stamps = nullptr, *list = nullptr;
  std::int32_t stamp = 0;
};
void fetch_units_cuda(const FetchUnits& b, const CudaContext& context);

}  // namespace mneme

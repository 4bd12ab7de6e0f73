// One selection of pages for all heads of a layer, on the device: every key of a page stands for it, and the best one
// counts (KeyMatch::kBest of recipe.h, with as many keys as a page has).
//
//   score(page) = max over its tokens of probe . key / |key|, all KV heads side by side
//
// where the probe has the queries of a group added up: their products with a key are one, with their sum.
//
// Numerics  a probe is split into two parts of the dtype of the keys, products are summed in f32.
// Ties      the later page.   NaN  a token whose product is NaN counts when a page has no other; such pages come last.
// Async     enqueues; allocates nothing.
#pragma once

#include <cstdint>

#include "src/kernels/cuda_context.h"
#include "src/kernels/kv_slots_cuda.h"

namespace mneme {

inline constexpr std::int32_t kKeyChunkPages = 64;

// Where the keys of a layer's pages lie: in the pages themselves, or alone, in chunks of kKeyChunkPages pages.
struct LayerKeys {
  KvTables pages;          // and the layer of these
  std::int32_t layer = 0;  // of `pages` or of chunks
  // [places][max_chunks] of [layers][KV heads][kKeyChunkPages * 32][D]; null: they lie in `pages`
  std::byte* const* chunks = nullptr;
  std::int32_t max_chunks = 0;
};
// Bytes of a chunk.
std::size_t key_chunk_bytes(std::int32_t n_layers, std::int32_t n_kv_heads, std::int32_t head_dim);
// Keys of pages [first, stop) of sequence `slot` and layer from_layer of `from` into the chunks of a place.
void copy_keys_cuda(const KvTables& from, std::int32_t slot, std::int32_t from_layer, const LayerKeys& to,
                    std::int32_t place, std::int32_t first, std::int32_t stop, const CudaContext& context);

// A window of a prompt.
struct ChoiceWindow {
  std::int32_t row = 0, n_rows = 0;  // of the chunk
  std::int32_t n_candidates = 0;     // pages first_unit .. first_unit + n_candidates - 1
  std::int32_t n_select = 0;         // of these, at most n_candidates; 0: nothing is selected
};

// Selections of the windows of one prompt's chunk.
//
//   probes   [n_windows, KV heads * D] f32
//   ranks    [n_windows, rank_stride] u32: scratch; rank_stride a multiple of 4
//   units    [n_windows, unit_stride] i32 out, ascending; n_units [n_windows] i32 out
struct ChooseWindows {
  LayerKeys keys;
  const float* probes = nullptr;
  const ChoiceWindow* windows = nullptr;
  std::int32_t n_windows = 0, n_heads = 0;
  std::int32_t place = 0, first_unit = 0, n_candidates = 0;  // the most that a window has
  std::uint32_t* ranks = nullptr;
  std::int64_t rank_stride = 0;
  std::int32_t *units = nullptr, *n_units = nullptr;
  std::int32_t unit_stride = 0;
  // For measuring, from 0 on: the share of a window's pages that the window before has not is drawn. first_row: of the
  // chunk in its prompt.
  float turnover = -1;
  std::int32_t first_row = 0;
};
void choose_windows_cuda(const ChooseWindows& c, const CudaContext& context);

// How layers share a budget by the entropy of their scores (src/blocks/entropy_cut.h): of one place, in one step.
struct LayerCut {
  std::int32_t k = 0;         // units a layer, on average; 0: as many as the rules' n_select
  std::int32_t n_layers = 0;  // that share
  bool reversed = false;
};

// Selections of rows that decode, one a sequence: KvSlots::chosen[0] of every KV head, and with it how many tokens of
// the list are far ones. Nothing is selected for rows within their budget. Without slots, whose keys lie in `pages`, it
// also writes KvSlots::listed, blocks of the pool: sinks and selected pages, or all pages within the budget.
//
//   far_q    [rows, heads * D] bf16: queries as they stand for what is far
//   ranks    [rows, rank_stride] u32: scratch
//   far_to   [rows] i32 out: sinks and selected tokens
//   cuts     [places]; later [places, n_layers] f64: sums of the mean entropies of the layers after each
//   pools    [places] f64: units that are left, kept from layer to layer
//   thetas   [places, n_layers] f64 out: normalised entropies; -1 where nothing was scored
struct ChooseLayer {
  LayerKeys keys;
  SlotRows rows;
  const void* far_q = nullptr;
  std::uint32_t* ranks = nullptr;
  std::int64_t rank_stride = 0;
  std::int32_t* far_to = nullptr;
  const LayerCut* cuts = nullptr;
  const double* later = nullptr;
  double *pools = nullptr, *thetas = nullptr;
};
// slot_layer: of `slots`, and the layer's number among those that share.
void choose_layer_cuda(const ChooseLayer& c, const KvSlots& slots, std::int32_t slot_layer, const CudaContext& context);

// Pages that windows selected, out of their sequence's pages into another table (of sequence 0 and layer 0), each once;
// pages from `there` on are there already.
//
//   stamps  [pages] i32: `stamp` marks what was brought; larger than any before
//   list    [1 + pages] i32: scratch
struct BringUnits {
  const std::int32_t *units = nullptr, *n_units = nullptr;
  std::int32_t unit_stride = 0, n_windows = 0, there = 0;
  KvTables from, to;
  std::int32_t from_slot = 0, from_layer = 0;
  std::int32_t *stamps = nullptr, *list = nullptr;
  std::int32_t stamp = 0;
};
void bring_units_cuda(const BringUnits& b, const CudaContext& context);

}  // namespace mneme

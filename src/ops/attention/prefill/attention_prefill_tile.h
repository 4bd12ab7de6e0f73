// Internal to prefill attention: the vector kernels and their interface, one tile of keys at a time.
//
// Lanes are queries: lane l of a query tile is (row, head) = ((first + l) / G, (first + l) % G). So the heads of a
// group share a tile of keys, softmax statistics need no reduction across lanes, and a lane's result depends on no
// other lane: it is bit-identical for any rows of the call and any tiling.
#pragma once

#include "src/ops/attention/attention.h"

namespace mneme {

constexpr int kKeyTile = 64;   // tokens; tiles start at multiples of it, counted from the part's first token
constexpr int kMaxLanes = 64;  // queries per tile: 16, 32 or 64

struct KeyTile {
  const std::byte* rows[kKeyTile] = {};  // [K | V] of each token; unused entries repeat the last
  std::int32_t begin = 0;                // index of rows[0] in the part
  int n = 0;
  bool masked = false;  // some lane does not attend all kKeyTile tokens
};

// State of one tile of queries. Statistics are in base 2: `sum` and `out` are relative to 2^top.
struct QueryTile {
  int n_lanes = 0;
  std::int32_t head_dim = 0;
  DType kv_dtype = DType::kBF16;
  void* q = nullptr;     // times scale * log2(e); bf16 kernel: [D / 2][lanes] pairs of bf16; f32 kernel: [D][lanes] f32
  float* top = nullptr;  // [lanes]
  float* sum = nullptr;  // [lanes]
  float* factor = nullptr;        // [lanes], scratch
  float* out = nullptr;           // [D][lanes]
  std::int32_t* first = nullptr;  // [lanes]: the lane attends tokens first <= j < last of the part
  std::int32_t* last = nullptr;   // [lanes]
  float* scores = nullptr;        // [kKeyTile][lanes], scratch
  void* weights = nullptr;        // scratch of the bf16 kernel: [kKeyTile / 2][lanes] pairs of bf16
  void* keys = nullptr;           // scratch of the f32 kernel: [kKeyTile][D] f32
  void* values = nullptr;  // scratch: bf16 kernel: [kKeyTile / 2][D] pairs of bf16; f32 kernel: [kKeyTile][D] f32
};

// Adds a tile of keys and values to every lane, and prefetches `following` (n = 0: none).
// f32 arithmetic, any CPU:
void attend_key_tile_f32(const KeyTile& tile, const KeyTile& following, const QueryTile& queries);
// x86 with AVX512-BF16, bf16 keys and values; query and probabilities rounded to bf16, sums in f32:
bool has_avx512_bf16();
void attend_key_tile_bf16(const KeyTile& tile, const KeyTile& following, const QueryTile& queries);

// An infinite or NaN value in a tile that some lane attends only in part: weight 0 times it would be NaN, so the
// kernels remove such values from the tile and add them separately to the lanes that attend them.
struct BadValue {
  std::int32_t token;  // index in the tile
  std::int32_t d;
  float value;
};

}  // namespace mneme

// Internal to prefill attention: what its driver hands to the vector kernels, one tile of keys at a time.
//
// Lanes are queries: lane l of a tile of queries is (row, head) = ((first + l) / G, (first + l) % G), so a tile of keys
// is shared by the heads of the group, softmax statistics need no sum across lanes, and what a lane computes depends on
// no other lane: neither the rows of the call nor their tiles change a bit.
#pragma once

#include "src/kernels/attention.h"

namespace mneme {

constexpr int kKeyTile = 64;   // tokens; tiles begin at multiples of it, counted from the part's first token
constexpr int kMaxLanes = 64;  // queries of a tile: 16, 32 or 64

struct KeyTile {
  const std::byte* rows[kKeyTile] = {};  // [K | V] of each token; the unused ones repeat the last
  std::int32_t begin = 0;                // index of rows[0] in the part
  int n = 0;
  bool masked = false;  // some lane does not see all of kKeyTile tokens
};

// One tile of queries at work. Statistics are in base 2: `sum` and `out` are relative to 2^top.
struct QueryTile {
  int n_lanes = 0;
  std::int32_t head_dim = 0;
  DType kv_dtype = DType::kBF16;
  void* q = nullptr;     // times scale * log2(e); bf16 kernel: [D / 2][lanes] pairs of bf16; f32 kernel: [D][lanes] f32
  float* top = nullptr;  // [lanes]
  float* sum = nullptr;  // [lanes]
  float* factor = nullptr;        // [lanes], scratch
  float* out = nullptr;           // [D][lanes]
  std::int32_t* first = nullptr;  // [lanes], the tokens of the part that the lane sees: first <= j < last
  std::int32_t* last = nullptr;   // [lanes]
  float* scores = nullptr;        // [kKeyTile][lanes], scratch
  void* weights = nullptr;        // scratch of the bf16 kernel: [kKeyTile / 2][lanes] pairs of bf16
  void* keys = nullptr;           // scratch of the f32 kernel: [kKeyTile][D] f32
  void* values = nullptr;  // scratch: bf16 kernel: [kKeyTile / 2][D] pairs of bf16; f32 kernel: [kKeyTile][D] f32
};

// Adds a tile of keys and values to every lane. `following` (n = 0: none) is fetched meanwhile.
// Any CPU, f32 arithmetic:
void attend_key_tile_f32(const KeyTile& tile, const KeyTile& following, const QueryTile& queries);
// x86 with AVX512-BF16, bf16 keys and values; query and probabilities rounded to bf16, sums in f32:
bool has_avx512_bf16();
void attend_key_tile_bf16(const KeyTile& tile, const KeyTile& following, const QueryTile& queries);

// A value that is infinite or NaN in a tile that some lane sees only in part: a weight of zero times it would be NaN,
// so the kernels take such values out of the tile and add them to the lanes that see them, alone.
struct BadValue {
  std::int32_t token;  // in the tile
  std::int32_t d;
  float value;
};

}  // namespace mneme

// The index of units on the device: one of boxes of pages, 1-bit keys of tokens, lists with centroids, or entries of
// the unfused selection. All arrays are [layers][seq slots][KV heads] first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mneme {

inline constexpr std::int32_t kBoxesBeyond = 256;  // boxes behind the last one that may be read

// 1-bit keys of tokens in the order in which a warp multiplies them; one_bit.h defines them. All arrays are
// [layers][seq slots][KV heads] first. A scan reads up to a page of four behind the last.
//
//   codes   [max_pages][4 D bytes]: of 32 tokens; a bit is 0 where the key is at least its zero point z
//   levels  [groups of max_pages][z: D | s: D] bf16
struct OneBitKeys {
  std::byte* codes = nullptr;
  std::byte* levels = nullptr;
};

// Channels of the rows that kernels of lists take: heads of 80 and 96 are padded with zeros, which changes neither
// products nor distances.
constexpr std::int32_t list_dim(std::int32_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

// Units that are lists of tokens, for every (layer, sequence slot, KV head): unit u is members[ends[u - 1], ends[u]),
// ascending positions. Together the units cover [sink, grouped), each token once; the window follows.
//
//   centroids  [max_units][list_dim(D)]  in the dtype of the keys (centroid.h), zeros behind their channels
//   ends       [max_units]
//   members    [max_tokens]
struct UnitLists {
  std::int32_t max_units = 0, max_tokens = 0;  // 0: units are not lists
  std::byte* centroids = nullptr;
  std::int32_t *ends = nullptr, *members = nullptr, *n_units = nullptr;
  std::int32_t* grouped = nullptr;  // [layers][seq slots]
};

// Index of the unfused selection: entries of `tokens` consecutive tokens in the layouts of box.h, one_bit.h, centroid.h
// and of selection/summary.
enum class EntryKind : std::int32_t {
  kNone,
  kMinMaxBox,
  kCuboidBox,
  kOneBitMinMax,
  kOneBitMeanAbs,
  kCentroid,
  kCentroidSet,  // centroids.h
  kSketch,       // sketch.h
  kMoments,      // moments.h
};
struct UnitEntries {
  EntryKind kind = EntryKind::kNone;
  std::int32_t tokens = 0, bytes = 0;  // of an entry
  std::int32_t most = 0;               // entries of a sequence
  std::byte* data = nullptr;           // [layers][seq slots][KV heads][most][bytes]
  std::int32_t rank = 0;               // centroids of an entry, or coefficients of a token
  std::int32_t frame_floats = 0;       // of a KV head's frame (key_frame.h); 0: entries have none
  float* frames = nullptr;             // [layers][seq slots][KV heads][frame_floats]

  bool summarised() const {
    return kind == EntryKind::kCentroidSet || kind == EntryKind::kSketch || kind == EntryKind::kMoments;
  }
};

struct UnitIndexes {
  std::int32_t group_tokens = 0;  // group size of 1-bit keys: 32, 64, 128 or 256; 0: boxes, or no index
  bool mean_abs = false;          // OneBitLevels::kMeanAbs
  std::byte* boxes = nullptr;     // [max_pages][hi: D | lo: D], dtype of the keys; kBoxesBeyond more at the end
  OneBitKeys keys;                // one_bit_cuda.h
  UnitLists lists;
  UnitEntries entries;
};

}  // namespace mneme

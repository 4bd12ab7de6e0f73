// The index of units on the device: entries of consecutive tokens (boxes, 1-bit keys, ...), or lists with centroids. All
// arrays are [layers][seq slots][KV heads] first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/host_device.h"

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

// What an index stores of a unit. From kMinMaxBox on: entries of `tokens` consecutive tokens in the layouts of box.h,
// one_bit.h, centroid.h and of selection/summary.
enum class EntryKind : std::int32_t {
  kNone,
  kKeys,            // the keys themselves
  kRepresentative,  // keys that represent a unit of a whole layer (selection/layer)
  kMinMaxBox,
  kCuboidBox,
  kOneBitMinMax,
  kOneBitMeanAbs,
  kCentroid,
  kCentroidSet,  // centroids.h
  kSketch,       // sketch.h
  kMoments,      // moments.h
};
// Whether the index has entries.
MNEME_HOST_DEVICE bool has_entries(EntryKind kind) {
  return kind >= EntryKind::kMinMaxBox;
}
MNEME_HOST_DEVICE bool is_box(EntryKind kind) {
  return kind == EntryKind::kMinMaxBox || kind == EntryKind::kCuboidBox;
}
// A page's summary (selection/summary).
MNEME_HOST_DEVICE bool is_summary(EntryKind kind) {
  return kind == EntryKind::kCentroidSet || kind == EntryKind::kSketch || kind == EntryKind::kMoments;
}
MNEME_HOST_DEVICE bool is_one_bit(EntryKind kind) {
  return kind == EntryKind::kOneBitMinMax || kind == EntryKind::kOneBitMeanAbs;
}
struct UnitEntries {
  EntryKind kind = EntryKind::kNone;
  std::int32_t tokens = 0, bytes = 0;  // of an entry
  std::int32_t most = 0;               // entries of a sequence
  std::byte* data = nullptr;           // [layers][seq slots][KV heads][most][bytes]
  std::int32_t rank = 0;               // centroids of an entry, or coefficients of a token
  std::int32_t frame_floats = 0;       // of a KV head's frame (key_frame.h); 0: entries have none
  float* frames = nullptr;             // [layers][seq slots][KV heads][frame_floats]

  bool operator==(const UnitEntries&) const = default;
  bool summarised() const { return is_summary(kind); }
};

struct UnitIndexes {
  UnitEntries entries;
  // `entries` where they are boxes of pages of 32, which store_qkv_cuda keeps up to date; kBoxesBeyond more at the end.
  std::byte* boxes = nullptr;
  OneBitKeys keys;  // of `entries`, groups of 32, 64, 128 or 256 tokens, in place of their data
  UnitLists lists;
};

}  // namespace mneme

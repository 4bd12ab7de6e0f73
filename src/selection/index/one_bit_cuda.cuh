// Memory layout of 1-bit keys on the device. A warp multiplies 16 tokens with 8 queries, 16 channels at a time (mma of
// common.cuh, lane = 4 g + t). Which 16 channels an mma takes is free as long as both operands agree, so a lane's
// channels are those that let it load 16 bytes at once:
//
//   chunk c, pair i  channels 32 c + 8 t + 2 i and the next: pair j = 4 c + i of the lane's D / 8
//
// Codes of 32 tokens are [32 lanes][4 / kPerWord words]. A word has kPerWord of the lane's tokens g + 8 n, n = 0 .. 3,
// and all its pairs of each: bits p and p + 16 are pair j of token n, p = n % kPerWord * D / 8 + j, so that shifted
// left by 15 - p they are the sign bits of two 16-bit values.
#pragma once

#include "src/offload/device_cache_cuda.cuh"

namespace mneme::cuda {

template <int kDim>
struct OneBitShape {
  static constexpr int kChunks = kDim / 32, kPairs = kDim / 8;  // per lane
  static constexpr int kPerWord = 16 / kPairs, kWords = 4 / kPerWord;
  static constexpr int kBlockBytes = 4 * kDim;  // codes of 32 tokens
  static constexpr int kLevelBytes = 4 * kDim;  // z and s of a group
};

__device__ __forceinline__ std::byte* codes_of(const DeviceCache& s, std::int64_t index, int page) {
  return s.index.keys.codes + (index * s.max_pages + page) * s.box_bytes();
}
__device__ __forceinline__ std::byte* levels_of(const DeviceCache& s, std::int64_t index, int group) {
  return s.index.keys.levels + (index * s.index.entries.most + group) * s.box_bytes();
}

}  // namespace mneme::cuda

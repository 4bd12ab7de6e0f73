// How ranks add up f32 over memory that they write to each other, without a barrier: one-shot all-reduce with the epoch
// beside the data. For host and device: tests run it on threads.
//
// To sum a tile a rank writes its values to every other rank, reads the others' from its own memory until they carry the
// epoch, and adds them up in the order of the ranks: the same bits on every rank.
//
//   tile     512 values, of one thread block; thread i has values [4 i, 4 i + 4) as packets i and 128 + i
//   packet   (value, epoch, value, epoch): 16 bytes, of which each half arrives whole
//   memory   of a rank: packets [2, ranks, tiles, 256]; zero at first
//   epoch    of a tile: how often it was summed, the same on all ranks; never 0
//
// Two buffers suffice: a rank writes epoch e after it has read the others' e - 1, which they wrote after they had read
// e - 2.
//
// Requires  a rank's sums run one after another (one stream); all ranks make the same calls.
// Source    NCCL's protocol LL: flags beside data; 8 bytes of an aligned store arrive whole.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MNEME_PEER_INLINE __host__ __device__ __forceinline__
#define MNEME_PEER_UNROLL _Pragma("unroll")
#else
#define MNEME_PEER_INLINE inline
#define MNEME_PEER_UNROLL
#endif

namespace mneme {

inline constexpr int kMaxPeers = 8;
inline constexpr int kPeerThreads = 128;
inline constexpr int kPeerTile = 4 * kPeerThreads;  // values

struct alignas(16) PeerPacket {
  float first = 0;
  std::uint32_t first_epoch = 0;
  float second = 0;
  std::uint32_t second_epoch = 0;
};
inline constexpr int kPeerPackets = kPeerTile / 2;  // of a tile

// The memory of all ranks, as one of them sees it.
struct PeerBuffers {
  PeerPacket* of[kMaxPeers] = {};
  std::uint32_t* epochs = nullptr;     // [tiles], this rank's alone
  const std::int32_t* stop = nullptr;  // not 0: ranks stop waiting, and sums are void
  std::int32_t rank = 0, tiles = 0;
};

// Rows of any number that two ranks read from each other's memory, a part a thread block: it says that its rank's are
// there, waits until the other's are, reads them, says that it has, and waits until the other has, so that the next GEMM
// may write.
inline constexpr int kPeerReaders = 128;  // thread blocks, on every device: they meet by number
struct PeerExchange {
  const float* of[2] = {};          // each rank's own
  std::uint32_t* flags[2] = {};     // each rank's, that the other writes: [2, kPeerReaders], rows are there, were read
  std::uint32_t* epochs = nullptr;  // [kPeerReaders], this rank's alone
  const std::int32_t* stop = nullptr;  // as above
  std::int32_t rank = 0;
};

struct PeerQuad {
  float v[4] = {};
};

constexpr std::int64_t peer_packets(int ranks, std::int64_t tiles) {
  return 2 * ranks * tiles * kPeerPackets;
}

// Buffers alternate, also where numbers start again.
MNEME_PEER_INLINE std::uint32_t next_epoch(std::uint32_t epoch) {
  return epoch == 0xffffffffu ? 2 : epoch + 1;
}

// Packet i of what rank `from` wrote for `tile`, in one rank's memory.
template <int kRanks>
MNEME_PEER_INLINE std::int64_t peer_packet(std::uint32_t epoch, int from, int tiles, int tile, int i) {
  const int buffer = static_cast<int>(epoch & 1) * kRanks + from;
  return (std::int64_t{buffer} * tiles + tile) * kPeerPackets + i;
}

// The part of thread `i` in the sum of a tile. Access has store(packet*, packet), load(const packet*) and stopped(), which
// is asked after every unsuccessful look.
template <int kRanks, typename Access>
MNEME_PEER_INLINE PeerQuad sum_over_peers(const PeerBuffers& peers, int tile, std::uint32_t epoch, int i,
                                          const PeerQuad& mine, Access& access) {
  const PeerPacket low{mine.v[0], epoch, mine.v[1], epoch}, high{mine.v[2], epoch, mine.v[3], epoch};
  const std::int64_t at = peer_packet<kRanks>(epoch, peers.rank, peers.tiles, tile, i);
  MNEME_PEER_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    if (r == peers.rank) continue;
    access.store(peers.of[r] + at, low);
    access.store(peers.of[r] + at + kPeerThreads, high);
  }
  PeerPacket got[kRanks][2];
  const PeerPacket* const here = peers.of[peers.rank];
  bool all = false;
  while (!all) {  // all packets are requested before the first is looked at
    MNEME_PEER_UNROLL
    for (int r = 0; r < kRanks; ++r) {
      if (r == peers.rank) continue;
      const std::int64_t from = peer_packet<kRanks>(epoch, r, peers.tiles, tile, i);
      got[r][0] = access.load(here + from);
      got[r][1] = access.load(here + from + kPeerThreads);
    }
    all = true;
    MNEME_PEER_UNROLL
    for (int r = 0; r < kRanks; ++r)
      if (r != peers.rank)
        all = all && got[r][0].first_epoch == epoch && got[r][0].second_epoch == epoch &&
              got[r][1].first_epoch == epoch && got[r][1].second_epoch == epoch;
    if (!all && access.stopped()) break;
  }
  PeerQuad sum;
  MNEME_PEER_UNROLL
  for (int r = 0; r < kRanks; ++r) {
    const bool own = r == peers.rank;
    sum.v[0] += own ? mine.v[0] : got[r][0].first;
    sum.v[1] += own ? mine.v[1] : got[r][0].second;
    sum.v[2] += own ? mine.v[2] : got[r][1].first;
    sum.v[3] += own ? mine.v[3] : got[r][1].second;
  }
  return sum;
}

}  // namespace mneme

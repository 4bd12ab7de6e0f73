// The protocol of sums over peers, by threads in place of GPUs: sums in the order of the ranks, two buffers however far
// ranks drift apart, epochs that start again, an end to waiting.
#include "src/parallel/peer_protocol.h"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <bit>
#include <thread>
#include <vector>

#include "src/base/rng.h"

namespace mneme {
namespace {

using testing::Each;

constexpr int kTiles = 3;

struct Half {
  float value;
  std::uint32_t epoch;
};

// Halves arrive whole, in any order and at any time.
class ThreadAccess {
 public:
  ThreadAccess(const std::int32_t* stop, std::uint64_t seed) : stop_(stop), rng_(seed) {}
  void store(PeerPacket* to, const PeerPacket& p) {
    auto* const halves = reinterpret_cast<std::uint64_t*>(to);
    const bool second_first = rng_.uniform() < 0.5f;
    put(halves + (second_first ? 1 : 0), second_first ? Half{p.second, p.second_epoch} : Half{p.first, p.first_epoch});
    if (rng_.uniform() < 0.1f) std::this_thread::yield();
    put(halves + (second_first ? 0 : 1), second_first ? Half{p.first, p.first_epoch} : Half{p.second, p.second_epoch});
  }
  PeerPacket load(const PeerPacket* from) const {
    auto* const halves = reinterpret_cast<std::uint64_t*>(const_cast<PeerPacket*>(from));
    const Half a = std::bit_cast<Half>(std::atomic_ref(halves[0]).load(std::memory_order_relaxed));
    const Half b = std::bit_cast<Half>(std::atomic_ref(halves[1]).load(std::memory_order_relaxed));
    return {a.value, a.epoch, b.value, b.epoch};
  }
  bool stopped() const {
    std::this_thread::yield();
    return std::atomic_ref(*const_cast<std::int32_t*>(stop_)).load() != 0;
  }

 private:
  static void put(std::uint64_t* to, Half half) {
    std::atomic_ref(*to).store(std::bit_cast<std::uint64_t>(half), std::memory_order_relaxed);
  }
  const std::int32_t* stop_;
  Rng rng_;
};

float value_of(int rank, int sum, int tile, int i) {
  return static_cast<float>((rank + 1) * 0.37 + sum * 1.13 - tile * 0.71 + i * 0.019);
}

template <int kRanks>
struct Ranks {
  std::array<std::vector<PeerPacket>, kRanks> memory;
  std::array<std::vector<std::uint32_t>, kRanks> epochs;
  std::int32_t stop = 0;

  explicit Ranks(std::uint32_t first_epoch = 0) {
    for (auto& m : memory) m.resize(static_cast<std::size_t>(peer_packets(kRanks, kTiles)));
    for (auto& e : epochs) e.assign(kTiles, first_epoch);
  }
  PeerBuffers of(int rank) {
    PeerBuffers b{.epochs = epochs[rank].data(), .stop = &stop, .rank = rank, .tiles = kTiles};
    for (int r = 0; r < kRanks; ++r) b.of[r] = memory[r].data();
    return b;
  }
  // The rank's part of sum number `sum`, over the first sum % kTiles + 1 tiles. How many values are not those of one rank
  // that has all.
  int wrong_of(int rank, int sum, ThreadAccess& access) {
    const PeerBuffers peers = of(rank);
    int wrong = 0;
    for (int tile = 0; tile <= sum % kTiles; ++tile) {
      const std::uint32_t epoch = next_epoch(peers.epochs[tile]);
      for (int i = 0; i < kPeerThreads; i += 13) {
        PeerQuad mine, expected;
        for (int k = 0; k < 4; ++k) {
          mine.v[k] = value_of(rank, sum, tile, 4 * i + k);
          for (int r = 0; r < kRanks; ++r) expected.v[k] += value_of(r, sum, tile, 4 * i + k);
        }
        const PeerQuad got = sum_over_peers<kRanks>(peers, tile, epoch, i, mine, access);
        for (int k = 0; k < 4; ++k) wrong += got.v[k] == expected.v[k] ? 0 : 1;
      }
      peers.epochs[tile] = epoch;
    }
    return wrong;
  }
};

template <int kRanks>
std::vector<int> wrong_sums(std::uint32_t first_epoch) {
  Ranks<kRanks> ranks(first_epoch);
  std::vector<int> wrong(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      ThreadAccess access(&ranks.stop, static_cast<std::uint64_t>(r) + 1);
      for (int sum = 0; sum < 100; ++sum) wrong[r] += ranks.wrong_of(r, sum, access);
    });
  for (std::thread& t : threads) t.join();
  return wrong;
}

TEST(PeerProtocol, EveryRankHasTheSumInTheOrderOfTheRanks) {
  EXPECT_THAT(wrong_sums<2>(0), Each(0));
  EXPECT_THAT(wrong_sums<4>(0), Each(0));
  EXPECT_THAT(wrong_sums<8>(0), Each(0));
}

TEST(PeerProtocol, EpochsStartAgainInTheOtherBuffer) {
  EXPECT_EQ(next_epoch(0), 1u);
  EXPECT_EQ(next_epoch(0xfffffffeu), 0xffffffffu);
  EXPECT_EQ(next_epoch(0xffffffffu), 2u);
  EXPECT_THAT(wrong_sums<2>(0xffffffffu - 20), Each(0));
}

// A packet of which one half has not arrived is not taken.
TEST(PeerProtocol, HalvesThatCarryAnotherEpochAreWaitedFor) {
  Ranks<2> ranks;
  ranks.stop = 1;  // looks once
  ThreadAccess access(&ranks.stop, 1);
  PeerPacket& theirs = ranks.memory[0][static_cast<std::size_t>(peer_packet<2>(1, 1, kTiles, 0, 0))];
  PeerPacket& rest = ranks.memory[0][static_cast<std::size_t>(peer_packet<2>(1, 1, kTiles, 0, kPeerThreads))];
  rest = {1, 1, 1, 1};
  struct Look : ThreadAccess {
    using ThreadAccess::ThreadAccess;
    int unsuccessful = 0;
    bool stopped() { return ++unsuccessful > 0; }
  };
  for (const PeerPacket& p : {PeerPacket{1, 1, 1, 0}, PeerPacket{1, 0, 1, 1}, PeerPacket{1, 3, 1, 3}, PeerPacket{}}) {
    theirs = p;
    Look look(&ranks.stop, 1);
    sum_over_peers<2>(ranks.of(0), 0, 1, 0, {}, look);
    EXPECT_EQ(look.unsuccessful, 1);
  }
  theirs = {1, 1, 1, 1};
  Look look(&ranks.stop, 1);
  EXPECT_EQ(sum_over_peers<2>(ranks.of(0), 0, 1, 0, {{1, 2, 3, 4}}, look).v[3], 5);
  EXPECT_EQ(look.unsuccessful, 0);
}

TEST(PeerProtocol, ARankThatIsAloneStopsWaiting) {
  Ranks<4> ranks;
  std::thread rank([&] {
    ThreadAccess access(&ranks.stop, 1);
    EXPECT_GT(ranks.wrong_of(2, 0, access), 0);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::atomic_ref(ranks.stop).store(1);
  rank.join();
}

// No two packets of a rank's memory are the same, and all are within it.
TEST(PeerProtocol, PacketsOfARankDoNotOverlap) {
  std::vector<int> seen(static_cast<std::size_t>(peer_packets(4, kTiles)));
  for (const std::uint32_t epoch : {6u, 7u})
    for (int from = 0; from < 4; ++from)
      for (int tile = 0; tile < kTiles; ++tile)
        for (int i = 0; i < kPeerPackets; ++i) ++seen.at(peer_packet<4>(epoch, from, kTiles, tile, i));
  EXPECT_THAT(seen, Each(1));
}

}  // namespace
}  // namespace mneme

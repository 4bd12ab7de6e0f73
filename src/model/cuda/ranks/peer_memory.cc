#include "src/model/cuda/ranks/peer_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <thread>

#include "src/cuda/check.h"
#include "src/ops/norm_rope/rank_rows_cuda.h"

namespace mneme {
namespace {

constexpr std::size_t kAllocation = std::size_t{2} << 20;  // smaller ones share what a handle shows others

constexpr std::size_t kFlagBytes = std::size_t{2} * kPeerReaders * sizeof(std::uint32_t);
static_assert(kFlagBytes % 256 == 0 && kPeerPackets * sizeof(PeerPacket) % 256 == 0, "rows are aligned");

// What a rank tells the others. Bytes, all of them set: it goes through Collective::all_gather.
struct Offer {
  cudaIpcMemHandle_t handle;
  std::array<char, 40> host;  // the kernel's boot id
  std::int64_t has_handle;
};

Offer offer_of(void* memory) {
  Offer offer;
  std::memset(&offer, 0, sizeof(offer));
  std::ifstream("/proc/sys/kernel/random/boot_id").read(offer.host.data(), offer.host.size() - 1);
  offer.has_handle =
      std::getenv("MNEME_RANKS_NO_PEERS") == nullptr && cudaIpcGetMemHandle(&offer.handle, memory) == cudaSuccess ? 1
                                                                                                                  : 0;
  static_cast<void>(cudaGetLastError());
  return offer;
}

// Whether every rank says yes.
bool all_agree(Collective& ranks, bool mine) {
  const std::uint64_t yes = mine ? 1 : 0;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::as_bytes(std::span(&yes, 1)), std::as_writable_bytes(std::span(all)));
  return std::all_of(all.begin(), all.end(), [](std::uint64_t v) { return v == 1; });
}

}  // namespace

PeerMemory::PeerMemory(int rank, int ranks, const PeerRoom& room)
    : ranks_(ranks),
      packet_bytes_(static_cast<std::size_t>(peer_packets(ranks, room.tiles)) * sizeof(PeerPacket)),
      rows_bytes_(ranks == 2 ? room.rows_bytes : 0),
      stop_(sizeof(std::int32_t)) {
  const std::size_t bytes = packet_bytes_ + kFlagBytes + rows_bytes_;
  shown_ = DeviceBuffer((bytes + kAllocation - 1) / kAllocation * kAllocation, "memory that other ranks access");
  epochs_ = DeviceBuffer(static_cast<std::size_t>(room.tiles + kPeerReaders) * sizeof(std::uint32_t),
                         "epochs of sums over ranks");
  *stop_.as<std::int32_t>() = 0;
  cuda_check(cudaMemset(shown_.data(), 0, packet_bytes_ + kFlagBytes), "clearing what other ranks write to");
  cuda_check(cudaMemset(epochs_.data(), 0, epochs_.size()), "clearing epochs");
  cuda_check(cudaDeviceSynchronize(), "clearing what other ranks write to");
  buffers_.epochs = epochs_.as<std::uint32_t>();
  rows_.epochs = buffers_.epochs + room.tiles;
  buffers_.stop = rows_.stop = reinterpret_cast<const std::int32_t*>(stop_.device_data());
  buffers_.rank = rows_.rank = rank;
  buffers_.tiles = room.tiles;
  own_rows_ = reinterpret_cast<float*>(shown_.data() + packet_bytes_ + kFlagBytes);
  take(rank, shown_.data());
}

// The memory of rank `rank`, where this one sees it.
void PeerMemory::take(int rank, std::byte* memory) {
  buffers_.of[rank] = reinterpret_cast<PeerPacket*>(memory);
  if (ranks_ != 2) return;
  rows_.flags[rank] = reinterpret_cast<std::uint32_t*>(memory + packet_bytes_);
  rows_.of[rank] = reinterpret_cast<float*>(memory + packet_bytes_ + kFlagBytes);
}

PeerMemory::~PeerMemory() {
  for (void* memory : mapped_) cudaIpcCloseMemHandle(memory);
  static_cast<void>(cudaGetLastError());
}

std::unique_ptr<PeerMemory> PeerMemory::open(Collective& ranks, const PeerRoom& room, std::string& why_not) {
  const int n = ranks.size();
  why_not = fmt::format("{} ranks: expected 2, 4 or 8", n);
  if (n != 2 && n != 4 && n != 8) return nullptr;
  std::unique_ptr<PeerMemory> memory(new PeerMemory(ranks.rank(), n, room));
  const Offer mine = offer_of(memory->shown_.data());
  std::vector<Offer> all(static_cast<std::size_t>(n));
  ranks.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  why_not = "the ranks' memory cannot be shown to other processes";
  if (std::any_of(all.begin(), all.end(), [](const Offer& o) { return o.has_handle != 1; })) return nullptr;
  why_not = "the ranks are on several hosts";
  if (std::any_of(all.begin(), all.end(), [&](const Offer& o) { return o.host != mine.host; })) return nullptr;
  bool mapped = true;
  for (int r = 0; r < n && mapped; ++r) {
    if (r == ranks.rank()) continue;
    void* there = nullptr;
    mapped = cudaIpcOpenMemHandle(&there, all[static_cast<std::size_t>(r)].handle, cudaIpcMemLazyEnablePeerAccess) ==
             cudaSuccess;
    static_cast<void>(cudaGetLastError());
    if (!mapped) break;
    memory->mapped_.push_back(there);
    memory->take(r, static_cast<std::byte*>(there));
  }
  why_not = "the GPUs do not access each other's memory";
  if (!all_agree(ranks, mapped)) return nullptr;
  why_not = "a first sum over the GPUs' memory did not come out right";
  if (!all_agree(ranks, memory->works())) return nullptr;
  why_not.clear();
  return memory;
}

// A sum over every tile, then one of rows, of what the ranks can check.
bool PeerMemory::works() {
  using Clock = std::chrono::steady_clock;
  const auto n = static_cast<std::size_t>(buffers_.tiles) * kPeerTile;
  const std::size_t n_rows = std::min(rows_bytes_ / sizeof(float) / 4 * 4, n);
  std::vector<float> values(n + n_rows);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i % 1021) * 8 + static_cast<std::size_t>(buffers_.rank));
  const Stream stream = Stream::make();
  const DeviceBuffer device(values.size() * sizeof(float), "values of a first sum");
  copy_bytes(device.data(), values.data(), device.size(), stream);
  auto* const first = device.as<float>();
  sum_over_peers_cuda(buffers_, ranks_, first, first, static_cast<std::int64_t>(n), {.stream = stream.get()});
  if (n_rows > 0) {
    copy_bytes(own_rows_, first + n, n_rows * sizeof(float), stream);
    read_peer_rows_cuda(rows_, nullptr, first + n, static_cast<std::int64_t>(n_rows), {.stream = stream.get()});
  }
  const Event done = Event::make();
  done.record(stream);
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
  while (!done.happened()) {
    if (Clock::now() > deadline) stop();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  copy_bytes(values.data(), device.data(), device.size(), stream);
  stream.synchronize();
  const bool in_time = *stop_.as<std::int32_t>() == 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto expected = static_cast<float>(static_cast<std::size_t>(ranks_) * (i % 1021) * 8) +
                          static_cast<float>(ranks_ * (ranks_ - 1)) / 2;
    if (!(values[i] == expected)) return false;
  }
  return in_time;
}

}  // namespace mneme

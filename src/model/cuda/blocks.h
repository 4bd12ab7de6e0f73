// Memory of a pool's blocks that the device accesses: device memory, or host memory that the device maps.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "src/base/progress.h"
#include "src/cuda/memory.h"
#include "src/kv/page_pool.h"
#include "src/model/cuda/delta/states.h"

namespace mneme {

class CudaBlocks final : public BlockMemory {
 public:
  // Errors  kResource.
  static std::unique_ptr<CudaBlocks> on_device(std::size_t bytes, const Stream& stream) {
    return std::unique_ptr<CudaBlocks>(new CudaBlocks(DeviceBuffer(bytes, "keys and values"), {}, bytes, stream));
  }
  static std::unique_ptr<CudaBlocks> on_host(std::size_t bytes, const Stream& stream, const ProgressFn& progress) {
    return std::unique_ptr<CudaBlocks>(new CudaBlocks({}, PinnedBuffer::for_kernels(bytes, progress), bytes, stream));
  }

  // By its device address.
  std::byte* base() const override { return device_.size() > 0 ? device_.data() : host_.device_data(); }
  bool in_host_memory() const override { return host_.size() > 0; }
  bool host_reads() const { return in_host_memory() && host_.data() == host_.device_data(); }  // at device addresses
  std::size_t bytes() const { return bytes_; }
  // The copy engine is slow in managed memory: the host copies what it reads.
  void copy(std::byte* to, const std::byte* from, std::size_t n) override {
    if (!host_reads()) return copy_bytes(to, from, n, stream_);
    stream_.synchronize();
    std::memcpy(to, from, n);
  }
  void move(std::span<const TokenMove> moves, std::span<const std::int32_t> ends, std::size_t token_bytes) override {
    stream_.synchronize();  // earlier copies out of the buffers may be in flight
    const std::size_t bytes = moves.size_bytes() + ends.size_bytes();
    if (moves_.size() < bytes) {
      moves_ = {}, moves_device_ = {};
      moves_ = PinnedBuffer(bytes + bytes / 2);
      moves_device_ = DeviceBuffer(bytes + bytes / 2, "tokens that move");
    }
    std::memcpy(moves_.data(), moves.data(), moves.size_bytes());
    std::memcpy(moves_.data() + moves.size_bytes(), ends.data(), ends.size_bytes());
    copy_bytes(moves_device_.data(), moves_.data(), bytes, stream_);
    move_tokens_cuda(base(), static_cast<std::int32_t>(token_bytes), moves_device_.as<TokenMove>(),
                     reinterpret_cast<const std::int32_t*>(moves_device_.data() + moves.size_bytes()),
                     static_cast<std::int32_t>(ends.size()), {.stream = stream_.get()});
  }
  void read(std::byte* to_host, const std::byte* from, std::size_t n) override {
    copy(to_host, from, n);
    stream_.synchronize();
  }
  void write(std::byte* to, const std::byte* from_host, std::size_t n) override {
    copy(to, from_host, n);
    stream_.synchronize();
  }
  HostMemory host_memory(std::size_t n) override {
    const auto pinned = std::make_shared<PinnedBuffer>(n);
    return {.data = pinned->data(), .device_data = pinned->device_data(), .owner = pinned};
  }
  void copy_blocks(const HostMemory& host, std::span<const BlockPlace> places, std::size_t block_bytes,
                   BlocksGo go) override {
    for (std::size_t n = 0; !places.empty(); places = places.subspan(n)) {
      n = std::min(places.size(), kListed);
      PlaceList& list = lists_[next_list_++ % lists_.size()];
      if (list.places.size() == 0) list = {PinnedBuffer(kListed * sizeof(BlockPlace)), Event::make()};
      list.read.synchronize();
      std::memcpy(list.places.data(), places.data(), n * sizeof(BlockPlace));
      copy_blocks_cuda(base(), host.device_data, reinterpret_cast<const BlockPlace*>(list.places.device_data()),
                       static_cast<std::int32_t>(n), block_bytes, go, {.stream = stream_.get()});
      list.read.record(stream_);
    }
  }
  void wait() override { stream_.synchronize(); }
  // Of states that set_states() has given the memory of.
  std::shared_ptr<StateValues> make_state(std::size_t, const StateValues* from) override {
    return CudaStates::make(states_, from);
  }
  void set_states(std::shared_ptr<CudaStates> states) { states_ = std::move(states); }

 private:
  static constexpr std::size_t kListed = 8192;
  // What a kernel copies, until it has read it.
  struct PlaceList {
    PinnedBuffer places;
    Event read;
  };

  CudaBlocks(DeviceBuffer device, PinnedBuffer host, std::size_t bytes, const Stream& stream)
      : device_(std::move(device)), host_(std::move(host)), bytes_(bytes), stream_(stream) {}

  DeviceBuffer device_;
  PinnedBuffer host_;
  PinnedBuffer moves_;
  DeviceBuffer moves_device_;
  std::array<PlaceList, 4> lists_;
  std::size_t next_list_ = 0;
  std::size_t bytes_;
  const Stream& stream_;
  std::shared_ptr<CudaStates> states_;
};

}  // namespace mneme

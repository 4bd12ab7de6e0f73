// Blocks between a pool on the device and host memory: what one kernel copies is what a loop of memcpy copies.
#include "src/model/cuda/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/cuda/cuda_testing.h"

namespace mneme {
namespace {

class CudaBlocksTest : public CudaTest {
 protected:
  // n different blocks at n different places.
  std::vector<BlockPlace> random_places(std::int32_t n, std::int32_t of) {
    std::vector<std::int32_t> blocks(of), places(of);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), rng_);
    std::shuffle(places.begin(), places.end(), rng_);
    std::vector<BlockPlace> out;
    for (std::int32_t i = 0; i < n; ++i) out.push_back({blocks[i], places[i]});
    return out;
  }
  std::vector<std::byte> random_bytes(std::size_t n) {
    std::vector<std::byte> bytes(n);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng_());
    return bytes;
  }
  std::mt19937 rng_{1};
};

TEST_F(CudaBlocksTest, OneKernelCopiesWhatALoopCopies) {
  for (const bool on_device : {true, false})
    for (const std::int32_t block_bytes : {512, 1088, 8192, 8704, 16384, 32768})
      for (const std::int32_t n : {1, 7, 300}) {
        constexpr std::int32_t kBlocks = 320;
        const std::size_t bytes = std::size_t{kBlocks} * block_bytes;
        auto blocks = on_device ? CudaBlocks::on_device(bytes, stream) : CudaBlocks::on_host(bytes, stream, {});
        const auto host = blocks->host_memory(bytes);
        std::vector<std::byte> pool = random_bytes(bytes), there = random_bytes(bytes);
        blocks->write(blocks->base(), pool.data(), bytes);
        std::ranges::copy(there, host.data);
        const auto out = random_places(n, kBlocks), in = random_places(n, kBlocks);
        blocks->copy_blocks(host, out, block_bytes, BlocksGo::kOut);
        blocks->copy_blocks(host, in, block_bytes, BlocksGo::kIn);
        blocks->wait();
        copy_blocks(pool.data(), there.data(), out, block_bytes, BlocksGo::kOut);
        copy_blocks(pool.data(), there.data(), in, block_bytes, BlocksGo::kIn);
        std::vector<std::byte> got(bytes);
        blocks->read(got.data(), blocks->base(), bytes);
        ASSERT_TRUE(got == pool) << n << " blocks of " << block_bytes;
        ASSERT_EQ(std::memcmp(there.data(), host.data, bytes), 0) << n << " blocks of " << block_bytes;
      }
}

// More blocks than a list has, and more lists than there are: a list is written again when its kernel has read it.
TEST_F(CudaBlocksTest, ManyBlocksGoInManyLists) {
  constexpr std::int32_t kBlocks = 70000, kBytes = 512;
  auto blocks = CudaBlocks::on_device(std::size_t{kBlocks} * kBytes, stream);
  const auto host = blocks->host_memory(std::size_t{kBlocks} * kBytes);
  for (std::int32_t i = 0; i < kBlocks; ++i) std::memcpy(host.data + std::size_t{kBytes} * i, &i, sizeof(i));
  const auto places = random_places(kBlocks, kBlocks);
  blocks->copy_blocks(host, places, kBytes, BlocksGo::kIn);
  std::vector<std::byte> got(std::size_t{kBlocks} * kBytes);
  blocks->read(got.data(), blocks->base(), got.size());
  for (const BlockPlace& p : places) {
    std::int32_t place = -1;
    std::memcpy(&place, got.data() + std::size_t{kBytes} * p.block, sizeof(place));
    ASSERT_EQ(place, p.place) << "block " << p.block;
  }
}

}  // namespace
}  // namespace mneme

#include "apps/bench/device/gather_cuda.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/cuda/cuda_testing.h"

namespace mneme {
namespace {

class CudaGatherTest : public CudaTest {};

TEST_F(CudaGatherTest, FetchesTheBlocksThatAreNamed) {
  std::mt19937 rng(2);
  constexpr std::size_t kPool = std::size_t{24} << 20;
  PinnedBuffer pool(kPool);
  for (std::size_t i = 0; i < kPool / 4; ++i) pool.as<std::uint32_t>()[i] = static_cast<std::uint32_t>(rng());
  for (const std::int32_t bytes : {512, 1024, 1536, 4096, 4608, 8192, 16384, 65536})
    for (const std::int32_t n : {1, 2, 31, 97, 300})
      for (const std::int32_t blocks : {1, 4, 16})
        for (const GatherBy by : {GatherBy::kLoads, GatherBy::kBulkCopies}) {
          const auto in_pool = static_cast<std::uint32_t>(kPool / static_cast<std::size_t>(bytes));
          std::vector<std::int32_t> ids;
          for (std::int32_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(rng() % in_pool));
          const DeviceArray<std::int32_t> there(ids);
          const std::size_t size = static_cast<std::size_t>(n) * static_cast<std::size_t>(bytes);
          DeviceArray<std::byte> out(size + 512, 0x5a);
          gather_blocks_cuda(out.data(), pool.device_data(), there.data(), n, bytes, blocks, by,
                             {.stream = stream.get()});
          const std::vector<std::byte> got = out.get(stream);
          for (std::int32_t i = 0; i < n; ++i)
            ASSERT_EQ(std::memcmp(got.data() + i * bytes,
                                  pool.data() + static_cast<std::int64_t>(ids[static_cast<std::size_t>(i)]) * bytes,
                                  static_cast<std::size_t>(bytes)),
                      0)
                << "block " << i << " of " << n << ", " << bytes << " bytes, " << blocks << " blocks";
          for (std::size_t i = size; i < got.size(); ++i) ASSERT_EQ(got[i], std::byte{0x5a});
        }
}

}  // namespace
}  // namespace mneme

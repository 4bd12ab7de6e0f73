#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "mneme/error.h"
#include "src/cuda/device.h"
#include "src/cuda/memory.h"
#include "tests/cuda/cuda_testing.h"

namespace mneme {
namespace {

class CudaDeviceTest : public CudaTest {};

TEST_F(CudaDeviceTest, SaysWhatThereIs) {
  const DeviceInfo info = device_info(0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.sm_count, 0);
  EXPECT_GT(info.memory_bytes, info.free_bytes);
  EXPECT_THROW(device_info(device_count()), Error);
}

TEST_F(CudaDeviceTest, TooMuchMemoryIsAnErrorWithTheNumbers) {
  try {
    const DeviceBuffer buffer(std::size_t{1} << 50, "test bytes");
    FAIL() << "2^50 bytes";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kResource);
    EXPECT_NE(std::string(e.what()).find("test bytes take 1125899906842624"), std::string::npos) << e.what();
  }
  EXPECT_NO_THROW(DeviceBuffer(1024, "fewer"));  // the error is not sticky
}

TEST_F(CudaDeviceTest, CopiesThroughPinnedMemorySmallAndLarge) {
  stream = Stream::make(Stream::Priority::kHigh);
  for (const std::size_t bytes : {std::size_t{4096}, (std::size_t{65} << 20) + 12345}) {
    std::int64_t last = -1;
    PinnedBuffer from(bytes, [&](std::string_view, std::int64_t done, std::int64_t) { last = done; });
    const PinnedBuffer to(bytes);
    const DeviceBuffer there(bytes, "bytes");
    for (std::size_t i = 0; i < bytes; ++i) from.data()[i] = static_cast<std::byte>(i * 7);
    std::memset(to.data(), 0, bytes);
    copy_bytes(there.data(), from.data(), bytes, stream);
    copy_bytes(to.data(), there.data(), bytes, stream);
    stream.synchronize();
    EXPECT_EQ(std::memcmp(from.data(), to.data(), bytes), 0);
    EXPECT_NE(to.device_data(), nullptr);
  }
}

TEST_F(CudaDeviceTest, AGraphReplaysWhatItCaptured) {
  const DeviceBuffer there(256, "bytes");
  const PinnedBuffer back(256);
  const Graph graph = Graph::capture(stream, [&] {
    set_bytes(there.data(), 5, 256, stream);
    copy_bytes(back.data(), there.data(), 256, stream);
  });
  std::memset(back.data(), 0, 256);
  graph.launch(stream);
  stream.synchronize();
  EXPECT_EQ(back.data()[255], std::byte{5});
}

}  // namespace
}  // namespace mneme

#include "src/tensor/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "src/base/error.h"

namespace mneme {
namespace {

bool aligned(const void* p, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

TEST(Buffer, IsAlignedAndWritable) {
  for (std::size_t bytes :
       {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{4097}, std::size_t{5} << 20}) {
    const Buffer b(bytes);
    EXPECT_EQ(b.size(), bytes);
    EXPECT_TRUE(aligned(b.data(), 64)) << bytes;
    std::memset(b.data(), 1, bytes);
  }
  EXPECT_TRUE(aligned(Buffer(std::size_t{8} << 20).data(), std::size_t{2} << 20)) << "large pieces can be huge pages";
}

TEST(Buffer, EmptyHasNoMemory) {
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer(0).size(), 0u);
}

TEST(Buffer, ReserveGrowsAndNeverShrinks) {
  Buffer b;
  b.reserve(100);
  EXPECT_EQ(b.size(), 100u);
  std::byte* const before = b.data();
  b.reserve(50);
  EXPECT_EQ(b.data(), before);
  EXPECT_EQ(b.size(), 100u);
  b.reserve(1000);
  EXPECT_EQ(b.size(), 1000u);
  std::memset(b.data(), 1, 1000);
}

TEST(Buffer, AMovedFromBufferIsEmptyAndUsable) {
  Buffer a(100);
  Buffer b = std::move(a);
  EXPECT_EQ(b.size(), 100u);
  EXPECT_EQ(a.size(), 0u);  // NOLINT: the moved-from state is what is tested
  EXPECT_EQ(a.data(), nullptr);
  a.reserve(10);
  ASSERT_NE(a.data(), nullptr);
  std::memset(a.data(), 1, 10);
  b = std::move(a);
  EXPECT_EQ(b.size(), 10u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end the process instead of refusing
TEST(Buffer, TooMuchIsAnErrorAndLeavesTheBufferUsable) {
  const std::size_t too_much = std::numeric_limits<std::size_t>::max() / 2;
  try {
    Buffer b(too_much);
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kResource);
  }
  EXPECT_THROW(Buffer huge(std::numeric_limits<std::size_t>::max()), Error) << "rounding up must not wrap";
  Buffer b(64);
  EXPECT_THROW(b.reserve(too_much), Error);
  b.reserve(64);
  ASSERT_NE(b.data(), nullptr);
  std::memset(b.data(), 1, 64);
}
#endif

TEST(Tensor, OwnsWhatItsViewShows) {
  const Tensor t(DType::kF32, {3, 5});
  EXPECT_EQ(t.bytes(), 60u);
  EXPECT_EQ(t.view().to_string(), "f32 [3, 5]");
  t.view().row_as<float>(2)[4] = 7.0f;
  EXPECT_EQ(t.as<float>()[14], 7.0f);
  const ConstTensorView v = t;
  EXPECT_EQ(v.row_as<float>(2)[4], 7.0f);
}

TEST(Tensor, OneDimensionEmptyAndQuantised) {
  EXPECT_EQ(Tensor(DType::kBF16, {7}).bytes(), 14u);
  EXPECT_EQ(Tensor(DType::kBF16, {0, 7}).bytes(), 0u);
  EXPECT_EQ(Tensor(DType::kQ4_0, {2, 64}).bytes(), 72u);
}

TEST(Tensor, TheViewFollowsAMove) {
  Tensor a(DType::kI32, {4});
  a.as<std::int32_t>()[3] = 9;
  const Tensor b = std::move(a);
  EXPECT_EQ(b.as<std::int32_t>()[3], 9);
}

}  // namespace
}  // namespace mneme

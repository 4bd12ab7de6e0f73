#include "src/kv/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>

#include "mneme/error.h"

namespace mneme {
namespace {

constexpr KvShape kTiny{.n_layers = 2, .n_kv_heads = 3, .head_dim = 8, .dtype = DType::kBF16};

TEST(PagePool, BlocksAreDistinctMemoryThatKeepsWhatIsWritten) {
  constexpr std::int64_t kBlocks = 4099;  // 4 MiB: uses huge pages
  PagePool pool(kTiny, kBlocks);
  std::set<std::byte*> places;
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    const BlockId id = pool.allocate();
    std::memset(pool.data(id), id.value % 251, kTiny.page_bytes());
    places.insert(pool.data(id));
  }
  EXPECT_EQ(pool.n_free(), 0);
  EXPECT_EQ(std::ssize(places), kBlocks);
  EXPECT_EQ(*places.rbegin() - *places.begin(), (kBlocks - 1) * static_cast<std::int64_t>(kTiny.page_bytes()));
  for (std::int32_t i = 0; i < kBlocks; ++i) {
    const std::byte* p = pool.data(BlockId(i));
    ASSERT_EQ(std::to_integer<int>(p[0]), i % 251);
    ASSERT_EQ(std::to_integer<int>(p[kTiny.page_bytes() - 1]), i % 251);
  }
}

TEST(PagePool, TheLastReferenceFrees) {
  PagePool pool(kTiny, 2);
  const BlockId a = pool.allocate();
  EXPECT_EQ(pool.references(a), 1);
  pool.retain(a);
  pool.release(a);
  EXPECT_EQ(pool.n_used(), 1);
  pool.release(a);
  EXPECT_EQ(pool.n_free(), 2);
  EXPECT_EQ(pool.references(a), 0);
}

TEST(PagePool, UsedMemoryIsUsedAgainFirst) {
  PagePool pool(kTiny, 1000);
  for (int i = 0; i < 50; ++i) pool.release(pool.allocate());
  EXPECT_EQ(pool.touched_blocks(), 1);
}

TEST(PagePool, OfWeaklyReleasedBlocksTheOldestIsAllocatedFirst) {
  PagePool pool(kTiny, 3);
  pool.set_windows({.tokens = 64, .layers = {false, true}});
  const BlockId a = pool.allocate(), b = pool.allocate(), c = pool.allocate();
  for (const BlockId id : {a, b, c}) pool.release_weakly(id);
  EXPECT_EQ(pool.released_weakly(), (std::vector<std::int32_t>{a.value, b.value, c.value}));
  const std::uint32_t content = pool.content(c);
  EXPECT_EQ(pool.allocate().value, a.value);
  EXPECT_EQ(pool.allocate().value, b.value);
  ASSERT_EQ(pool.content(c), content) << "nobody was given it";
  pool.take_back(c);
  EXPECT_EQ(pool.references(c), 1);
  EXPECT_EQ(pool.n_free(), 0);
}

TEST(PagePool, ReservesMoreThanTheMachineHas) {
  PagePool pool(KvShape{.n_layers = 1, .n_kv_heads = 1, .head_dim = 128, .dtype = DType::kF16},
                std::int64_t{1} << 22);  // 64 GiB of address space
  const BlockId id = pool.allocate();
  pool.data(id)[0] = std::byte{1};
  EXPECT_EQ(pool.touched_blocks(), 1);
}

TEST(PagePool, BlocksGoToPlacesInHostMemoryAndBack) {
  PagePool pool(kTiny, 5);
  const std::size_t bytes = kTiny.page_bytes();
  std::vector<BlockId> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(pool.allocate());
    std::memset(pool.data(ids[i]), 10 + i, bytes);
  }
  const auto host = pool.host_memory(3 * bytes);
  std::memset(host.data, 1, 3 * bytes);
  const BlockPlace out[] = {{ids[4].value, 0}, {ids[1].value, 2}}, in[] = {{ids[0].value, 2}, {ids[2].value, 1}};
  pool.copy_blocks(host, out, BlocksGo::kOut);
  pool.copy_blocks(host, in, BlocksGo::kIn);
  pool.wait();
  const int held[] = {14, 1, 11}, blocks[] = {11, 11, 1, 13, 14};
  for (int i = 0; i < 3; ++i)
    for (const std::size_t at : {std::size_t{0}, bytes - 1})
      EXPECT_EQ(std::to_integer<int>(host.data[i * bytes + at]), held[i]) << i;
  for (int i = 0; i < 5; ++i)
    for (const std::size_t at : {std::size_t{0}, bytes - 1})
      EXPECT_EQ(std::to_integer<int>(pool.data(ids[i])[at]), blocks[i]) << i;
}

TEST(PagePool, AnEmptyPoolIsOne) {
  PagePool pool(kTiny, 0);
  EXPECT_EQ(pool.n_blocks(), 0);
  EXPECT_EQ(pool.n_free(), 0);
}

TEST(PagePool, TooManyBlocksIsAnErrorWithTheNumbers) {
  try {
    PagePool pool(kTiny, std::int64_t{1} << 40);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kResource);
    EXPECT_NE(std::string(e.what()).find("1099511627776 blocks of 1024 bytes"), std::string::npos) << e.what();
  }
  const KvShape wide{.n_layers = 1, .n_kv_heads = 1, .head_dim = 1 << 29, .dtype = DType::kBF16};
  EXPECT_THROW(PagePool(wide, 1 << 20), Error);  // 2^56 bytes: mmap refuses
}

TEST(PagePoolDeathTest, MisuseAborts) {
  PagePool pool(kTiny, 1);
  const BlockId a = pool.allocate();
  EXPECT_DEATH(pool.allocate(), "none of 1 blocks is free");
  pool.release(a);
  EXPECT_DEATH(pool.release(a), "block 0 is free");
  EXPECT_DEATH(pool.retain(a), "block 0 is free");
  EXPECT_DEATH(pool.references(BlockId(1)), "block 1 of 1");
  EXPECT_DEATH(pool.references(BlockId()), "block -1");
}

}  // namespace
}  // namespace mneme

#include "src/selection/index/entry_store.h"

#include <gtest/gtest.h>

#include <cstring>

namespace mneme {
namespace {

void put(EntryStore& store, std::uint64_t value) {
  std::memcpy(store.append(), &value, sizeof(value));
}
std::uint64_t get(const EntryStore& store, std::int32_t i) {
  std::uint64_t value;
  std::memcpy(&value, store.entry(i), sizeof(value));
  return value;
}

TEST(EntryStore, KeepsEntriesOverChunks) {
  EntryStore store(8);
  for (std::uint64_t i = 0; i < 1000; ++i) put(store, i * i);
  ASSERT_EQ(store.size(), 1000);
  for (std::int32_t i = 0; i < 1000; ++i)
    EXPECT_EQ(get(store, i), static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(i));
  std::int32_t next = 5;
  store.for_contiguous(5, 777, [&](const std::byte* bytes, std::int32_t first, std::int32_t n) {
    EXPECT_EQ(first, next);
    EXPECT_EQ(bytes, store.entry(first));
    next += n;
  });
  EXPECT_EQ(next, 777);
}

TEST(EntryStore, ForkSharesWholeChunksAndCopiesTheOpenOne) {
  EntryStore a(8);
  const std::int32_t chunk = EntryStore::kChunkEntries;
  for (std::int32_t i = 0; i < chunk + 10; ++i) put(a, i);
  EntryStore b = a;
  put(a, 111);
  put(b, 222);
  EXPECT_EQ(a.entry(3), b.entry(3));
  EXPECT_EQ(get(a, chunk + 10), 111u);
  EXPECT_EQ(get(b, chunk + 10), 222u);
  for (std::int32_t i = 0; i < chunk + 10; ++i) EXPECT_EQ(get(a, i), get(b, i));
}

TEST(EntryStore, ForkAtAChunksEndSharesItForGood) {
  EntryStore a(8);
  for (std::int32_t i = 0; i < EntryStore::kChunkEntries; ++i) put(a, 7);
  EntryStore b = a;
  put(b, 8);
  EXPECT_EQ(a.entry(0), b.entry(0));
  EXPECT_EQ(a.size(), EntryStore::kChunkEntries);
}

TEST(EntryStore, TruncateThenAppendLeavesForksAlone) {
  EntryStore a(8);
  for (std::uint64_t i = 0; i < 20; ++i) put(a, i);
  EntryStore b = a;
  a.truncate(10);
  put(a, 99);
  EXPECT_EQ(get(a, 10), 99u);
  EXPECT_EQ(get(b, 10), 10u);
}

}  // namespace
}  // namespace mneme

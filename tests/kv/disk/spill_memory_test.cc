#include "src/kv/disk/spill_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "mneme/error.h"
#include "src/kv/page_pool.h"
#include "tests/error_message.h"
#include "tests/temp_folder.h"

namespace mneme {
namespace {

constexpr std::size_t kBlock = 8192;

// Bytes of the mapping that the system has in memory, whoever fetched them.
std::int64_t in_memory(const SpillMemory& memory) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t bytes = memory.stats().file_bytes;
  std::vector<unsigned char> pages(bytes / page);
  EXPECT_EQ(mincore(memory.base(), bytes, pages.data()), 0);
  std::int64_t n = 0;
  for (const unsigned char p : pages) n += p & 1;
  return n * static_cast<std::int64_t>(page);
}

void fill(const SpillMemory& memory, std::int64_t block, std::uint64_t value, std::size_t bytes = kBlock) {
  std::vector<std::uint64_t> words(bytes / 8, value);
  std::memcpy(memory.base() + block * bytes, words.data(), bytes);
}

testing::AssertionResult holds(const SpillMemory& memory, std::int64_t block, std::uint64_t value,
                               std::size_t bytes = kBlock) {
  std::vector<std::uint64_t> words(bytes / 8);
  std::memcpy(words.data(), memory.base() + block * bytes, bytes);
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] != value)
      return testing::AssertionFailure() << "block " << block << " has " << words[i] << " at " << i << ", not "
                                         << value;
  return testing::AssertionSuccess();
}

TEST(SpillMemory, HoldsMoreThanItKeepsInMemory) {
  const TempFolder folder;
  constexpr std::int64_t kBlocks = 1000, kMost = 100 * kBlock;
  SpillMemory memory(kBlock, kBlocks, {.folder = folder.path() / "kv", .resident_bytes = kMost});
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    memory.touch(i);
    fill(memory, i, 7 * i + 1);
    if (i % 10 == 9) memory.end_layer();
    ASSERT_LE(memory.stats().resident_bytes, kMost + kMost / 2 + std::int64_t{16 * kBlock});
  }
  EXPECT_LE(memory.stats().resident_bytes, kMost);
  EXPECT_LE(in_memory(memory), kMost + kMost / 4) << "the system lags by what it writes";
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    memory.touch(i);
    ASSERT_TRUE(holds(memory, i, 7 * i + 1));
    if (i % 10 == 9) memory.end_layer();
  }
  EXPECT_LE(in_memory(memory), kMost + kMost / 4);
  EXPECT_GE(memory.stats().fetched_bytes, (kBlocks - 150) * std::int64_t{kBlock});
  EXPECT_FALSE(memory.stats().failed);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "kv")) << "its file has no name";
}

// Whoever forgets to touch a block reads it all the same.
TEST(SpillMemory, ContentDoesNotDependOnTouches) {
  const TempFolder folder;
  SpillMemory memory(kBlock, 300, {.folder = folder.path(), .resident_bytes = 20 * kBlock});
  std::mt19937 random(1);
  std::vector<std::uint64_t> expected(300, 0);
  for (int i = 0; i < 20000; ++i) {
    const std::int64_t block = random() % 300;
    if (random() % 2 == 0) memory.touch(block);
    if (random() % 3 == 0) fill(memory, block, expected[block] = random());
    ASSERT_TRUE(holds(memory, block, expected[block]));
    if (random() % 50 == 0) memory.end_layer();
    if (random() % 500 == 0) memory.end_step();
  }
}

TEST(SpillMemory, KeepsWhatEveryStepUses) {
  const TempFolder folder;
  constexpr std::int64_t kBlocks = 400, kMost = 100;
  SpillMemory memory(kBlock, kBlocks, {.folder = folder.path(), .resident_bytes = kMost * kBlock});
  std::mt19937 random(2);
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    memory.touch(i);
    fill(memory, i, i);
  }
  memory.end_layer();
  const auto steps = [&](int n) {
    for (int step = 0; step < n; ++step) {
      memory.end_step();
      for (std::int64_t i = 0; i < 40; ++i) memory.touch(i * 3);  // always
      memory.end_layer();
      for (int i = 0; i < 20; ++i) memory.touch(random() % kBlocks);  // once in a while
      memory.end_layer();
    }
  };
  steps(30);
  const std::int64_t before = memory.stats().fetched_bytes;
  steps(100);
  const double fetched = static_cast<double>(memory.stats().fetched_bytes - before) / kBlock / 100;
  EXPECT_LT(fetched, 20) << "blocks a step, of 20 that are drawn; the 40 of all steps stay";
  EXPECT_GT(fetched, 5);
}

// Least recently used would read all of it in every step: whatever goes is wanted next.
TEST(SpillMemory, WhatIsReadInTurnsStaysInPart) {
  const TempFolder folder;
  constexpr std::int64_t kBlocks = 400, kMost = 200;
  SpillMemory memory(kBlock, kBlocks, {.folder = folder.path(), .resident_bytes = kMost * kBlock});
  const auto step = [&] {
    memory.end_step();
    for (std::int64_t i = 0; i < kBlocks; ++i) {
      memory.touch(i);
      if (i % 20 == 19) memory.end_layer();
    }
  };
  for (int i = 0; i < 30; ++i) step();
  const std::int64_t before = memory.stats().fetched_bytes;
  for (int i = 0; i < 50; ++i) step();
  const double fetched = static_cast<double>(memory.stats().fetched_bytes - before) / kBlock / 50;
  EXPECT_LT(fetched, 0.75 * kBlocks) << "blocks a step; 200 at best, 400 where nothing stays";
}

// Blocks of 8 bits are no whole pages of the system.
TEST(SpillMemory, BlocksOfAnySize) {
  const TempFolder folder;
  constexpr std::size_t kOdd = 32 * 136;
  SpillMemory memory(kOdd, 333, {.folder = folder.path(), .resident_bytes = 40 * kOdd});
  for (std::int64_t i = 0; i < 333; ++i) {
    memory.touch(i);
    fill(memory, i, i + 5, kOdd);
    memory.end_layer();
  }
  for (std::int64_t i = 0; i < 333; ++i) {
    memory.touch(i);
    ASSERT_TRUE(holds(memory, i, i + 5, kOdd));
    memory.end_layer();
  }
  EXPECT_GT(memory.stats().evicted_bytes, 0);
}

TEST(SpillMemory, ThreadsTouchAndWriteAtOnce) {
  const TempFolder folder;
  constexpr std::int64_t kEach = 200;
  SpillMemory memory(kBlock, 4 * kEach, {.folder = folder.path(), .resident_bytes = 64 * kBlock});
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&memory, t] {
      for (std::uint64_t round = 0; round < 5; ++round)
        for (std::int64_t i = t * kEach; i < (t + 1) * kEach; ++i) {
          memory.touch(i);
          if (round > 0) {
            EXPECT_TRUE(holds(memory, i, 100 * i + round - 1));
          }
          fill(memory, i, 100 * i + round);
          if (i % 16 == 0) memory.end_layer();
        }
    });
  for (std::thread& t : threads) t.join();
  for (std::int64_t i = 0; i < 4 * kEach; ++i) EXPECT_TRUE(holds(memory, i, 100 * i + 4));
}

TEST(SpillMemory, AFolderWithoutRoomRefusesTheStart) {
  const TempFolder folder;
  const auto refusal = [](ErrorKind kind, const std::filesystem::path& in, std::int64_t mib) {
    return error_message(
        kind, [&] { SpillMemory memory(std::size_t{1} << 20, mib, {.folder = in, .resident_bytes = 1 << 20}); });
  };
  EXPECT_NE(refusal(ErrorKind::kResource, folder.path(), std::int64_t{1} << 31), "");
  EXPECT_NE(refusal(ErrorKind::kFile, folder.path(), std::int64_t{1} << 23), "") << "8 TiB";
  EXPECT_NE(refusal(ErrorKind::kFile, "/proc/no/such", 10), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(PagePool, BlocksBeyondMemoryLieInAFile) {
  const TempFolder folder;
  constexpr KvShape kShape{.n_layers = 2, .n_kv_heads = 3, .head_dim = 64, .dtype = DType::kBF16};
  PagePool pool(kShape, 60, SpillOptions{.folder = folder.path(), .resident_bytes = 10 * 8192});
  std::vector<BlockId> blocks;
  for (int i = 0; i < 60; ++i) {
    blocks.push_back(pool.allocate());
    pool.touch(blocks.back());
    std::memset(pool.data(blocks.back()), i, kShape.page_bytes());
    pool.end_layer();
  }
  EXPECT_LE(pool.spill_stats()->resident_bytes, 10 * 8192);
  for (int i = 0; i < 60; ++i) {
    pool.touch(blocks[i]);
    EXPECT_EQ(std::to_integer<int>(pool.data(blocks[i])[8191]), i);
  }
  EXPECT_FALSE(pool.on_device());
  EXPECT_TRUE(pool.in_host_memory());
}

}  // namespace
}  // namespace mneme

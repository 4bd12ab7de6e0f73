// Pages in host memory beside a pool come back as they were, whatever came and went in between; and a pool whose copies
// are late is waited for.
#include "src/kv/host_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/base/size32.h"
#include "tests/error_message.h"

namespace mneme {
namespace {

constexpr KvShape kShape{.n_layers = 2, .n_kv_heads = 3, .head_dim = 8, .dtype = DType::kBF16};
constexpr std::int64_t kPage = 6 * 1024;

PageKey key_of(std::uint64_t name, std::int32_t number) {
  PageKey key{.hash = name * 1000003 + number + 1, .parent = name * 1000003 + number, .number = number, .tokens = {}};
  key.tokens.fill(static_cast<std::int32_t>(name) * 100 + number);
  return key;
}

std::vector<PageKey> sequence(std::uint64_t name, std::int32_t n_pages) {
  std::vector<PageKey> keys;
  for (std::int32_t i = 0; i < n_pages; ++i) keys.push_back(key_of(name, i));
  return keys;
}

// A byte of each block's: what a page of a sequence holds follows from its key.
std::byte byte_of(const PageKey& key, std::int32_t layer, std::int32_t head) {
  return static_cast<std::byte>(Rng(key.hash, layer * 8 + head).below(256));
}

struct Pool {
  explicit Pool(std::int64_t pages, std::unique_ptr<BlockMemory> memory = nullptr)
      : pool(kShape, pages * kShape.blocks_per_page(), std::move(memory)) {}

  SequenceCache filled(const std::vector<PageKey>& keys) {
    SequenceCache cache(pool);
    cache.extend(size32(keys) * kPageTokens);
    for_blocks(cache, keys, [](std::byte* block, std::byte value) {
      std::memset(block, std::to_integer<int>(value), kShape.page_bytes());
    });
    return cache;
  }
  static void expect(const SequenceCache& cache, const std::vector<PageKey>& keys) {
    for_blocks(cache, keys, [](const std::byte* block, std::byte value) {
      ASSERT_EQ(block[0], value);
      ASSERT_EQ(block[kShape.page_bytes() - 1], value);
    });
  }
  PagePool pool;

 private:
  static void for_blocks(const SequenceCache& cache, const std::vector<PageKey>& keys,
                         const std::function<void(std::byte*, std::byte)>& take) {
    for (const PageKey& key : keys)
      for (std::int32_t l = 0; l < kShape.n_layers; ++l)
        for (std::int32_t h = 0; h < kShape.n_kv_heads; ++h)
          take(cache.pool().data(cache.table(l, h)[key.number]), byte_of(key, l, h));
  }
};

void expect_back(Pool& p, HostStore& store, const std::vector<PageKey>& keys) {
  SequenceCache back(p.pool);
  back.extend(size32(keys) * kPageTokens);
  store.load(back, keys);
  p.pool.wait();
  p.expect(back, keys);
}

TEST(HostStore, PagesComeBackAsTheyWere) {
  Pool p(40);
  HostStore store(p.pool, 20 * kPage);
  const auto a = sequence(1, 6), b = sequence(2, 9);
  {
    const SequenceCache of_a = p.filled(a), of_b = p.filled(b);
    EXPECT_TRUE(store.store(of_a, a));
    EXPECT_TRUE(store.store(of_b, std::span(b).subspan(4)));
    EXPECT_TRUE(store.store(of_b, b));
  }
  p.filled(sequence(3, 40));  // over what they were
  EXPECT_EQ(store.stats().stored, 15) << "a page that is there is not stored again";
  EXPECT_EQ(store.find(b), 9);
  expect_back(p, store, a);
  expect_back(p, store, b);
  EXPECT_EQ(store.stats().loaded, 15);
  store.check_invariants();
}

TEST(HostStore, TheEndsOfWhatWasUsedLongestAgoGoFirst) {
  Pool p(40);
  HostStore store(p.pool, 10 * kPage);
  const auto a = sequence(1, 4), b = sequence(2, 4), c = sequence(3, 4);
  EXPECT_TRUE(store.store(p.filled(a), a));
  EXPECT_TRUE(store.store(p.filled(b), b));
  EXPECT_EQ(store.find(a), 4);
  EXPECT_TRUE(store.store(p.filled(c), c));
  EXPECT_EQ(store.find(a), 4);
  EXPECT_EQ(store.find(b), 2);
  EXPECT_EQ(store.find(c), 4);
  EXPECT_EQ(store.stats().evicted, 2);
  for (const auto& [keys, n] : {std::pair(a, 4), {b, 2}, {c, 4}})
    expect_back(p, store, {keys.begin(), keys.begin() + n});
  store.check_invariants();
}

TEST(HostStore, OneThatIsTooLongHasNoRoomForItsEnd) {
  Pool p(20);
  HostStore store(p.pool, 4 * kPage);
  const auto a = sequence(1, 7);
  EXPECT_FALSE(store.store(p.filled(a), a));
  EXPECT_EQ(store.find(a), 4) << "none of it went for what follows it";
  expect_back(p, store, sequence(1, 4));
}

TEST(HostStore, WhatIsHeldStays) {
  Pool p(40);
  HostStore store(p.pool, 6 * kPage);
  const auto a = sequence(1, 4), b = sequence(2, 6);
  EXPECT_TRUE(store.store(p.filled(a), a));
  store.hold(a);
  EXPECT_FALSE(store.store(p.filled(b), b));
  store.drop(a);
  EXPECT_EQ(store.find(a), 4);
  EXPECT_EQ(store.find(b), 2);
  store.release(a);
  store.drop(a);
  EXPECT_EQ(store.find(a), 0);
  EXPECT_TRUE(store.store(p.filled(b), b));
  expect_back(p, store, b);
  store.check_invariants();
}

// Another sequence's page has the same hash: it is not found, not overwritten, and not forgotten.
TEST(HostStore, ComparesTokens) {
  Pool p(20);
  HostStore store(p.pool, 6 * kPage);
  const auto a = sequence(1, 1);
  auto other = a;
  other[0].tokens.fill(7);
  EXPECT_TRUE(store.store(p.filled(a), a));
  EXPECT_EQ(store.find(other), 0);
  EXPECT_FALSE(store.store(p.filled(other), other));
  store.drop(other);
  EXPECT_EQ(store.find(a), 1);
}

TEST(HostStore, WithoutRoomForAPageItIsRefused) {
  Pool p(4);
  EXPECT_EQ(error_message(ErrorKind::kOption, [&] { HostStore(p.pool, kPage - 1); }),
            "6143 bytes of host memory have no room for a page, which takes 6144");
}

// Copies of blocks happen in order, but none before it has to, as a device's may. Its host memory may refuse.
class LateBlocks final : public BlockMemory {
 public:
  explicit LateBlocks(std::size_t bytes, bool refuses = false) : bytes_(bytes), refuses_(refuses) {}
  std::byte* base() const override { return const_cast<std::byte*>(bytes_.data()); }
  bool in_host_memory() const override { return false; }
  void copy(std::byte* to, const std::byte* from, std::size_t n) override {
    wait();
    std::memcpy(to, from, n);
  }
  void move(std::span<const TokenMove>, std::span<const std::int32_t>, std::size_t) override { std::abort(); }
  void read(std::byte* to_host, const std::byte* from, std::size_t n) override { copy(to_host, from, n); }
  void write(std::byte* to, const std::byte* from_host, std::size_t n) override { copy(to, from_host, n); }
  HostMemory host_memory(std::size_t n) override {
    if (refuses_) fail(ErrorKind::kResource, "{} bytes of host memory cannot be locked", n);
    const auto own = std::make_shared<std::vector<std::byte>>(n);
    return {.data = own->data(), .device_data = own->data(), .owner = own};
  }
  void copy_blocks(const HostMemory& host, std::span<const BlockPlace> places, std::size_t block_bytes,
                   BlocksGo go) override {
    const std::vector<BlockPlace> listed(places.begin(), places.end());
    late_.emplace_back(
        [this, at = host.data, listed, block_bytes, go] { mneme::copy_blocks(base(), at, listed, block_bytes, go); });
  }
  void wait() override {
    for (const auto& copy : late_) copy();
    late_.clear();
  }
  std::shared_ptr<StateValues> make_state(std::size_t, const StateValues*) override { return nullptr; }

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::function<void()>> late_;
  bool refuses_;
};

TEST(HostStore, MemoryThatCannotBeHadIsAnError) {
  Pool p(4, std::make_unique<LateBlocks>(4 * kPage, true));
  EXPECT_EQ(error_message(ErrorKind::kResource, [&] { HostStore(p.pool, 8 * kPage); }),
            "49152 bytes of host memory cannot be locked");
  EXPECT_EQ(p.pool.n_free(), p.pool.n_blocks());
}

TEST(HostStore, CopiesThatAreLateKeepTheirOrder) {
  Pool p(12, std::make_unique<LateBlocks>(12 * kPage));
  HostStore store(p.pool, 4 * kPage);
  Rng rng(1);
  std::map<std::uint64_t, std::vector<PageKey>> all;
  for (std::uint64_t name = 0; name < 200; ++name) {
    const auto keys = sequence(name, 1 + static_cast<std::int32_t>(rng.below(4)));
    store.store(p.filled(keys), keys);
    all[name] = keys;
    const std::vector<PageKey>& before = all.at(name - rng.below(std::min<std::uint64_t>(name, 3) + 1));
    const std::int32_t n = store.find(before);
    if (n > 0) expect_back(p, store, {before.begin(), before.begin() + n});
    p.pool.wait();  // the next one is filled by this thread
    store.check_invariants();
  }
  EXPECT_GT(store.stats().loaded, 50);
}

}  // namespace
}  // namespace mneme

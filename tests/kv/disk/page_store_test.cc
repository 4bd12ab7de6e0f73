// What is stored is found and read as it was, whatever disks and crashes do to the rest.
#include "src/kv/disk/page_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>

#include "src/base/error.h"
#include "src/base/rng.h"
#include "tests/disk_calls.h"
#include "tests/temp_folder.h"

namespace mneme {
namespace {

constexpr std::size_t kPage = 5000;  // no multiple of a block
constexpr std::size_t kSlot = 8192;

// Page `number` of sequence `name`: what it holds follows from both.
PageKey key_of(std::uint64_t name, std::int32_t number) {
  PageKey key{.hash = name * 1000003 + number + 1, .parent = name * 1000003 + number, .number = number, .tokens = {}};
  for (std::int32_t i = 0; i < kPageTokens; ++i) key.tokens[i] = static_cast<std::int32_t>(name) * 100 + number + i;
  return key;
}

std::vector<PageKey> sequence(std::uint64_t name, std::int32_t n_pages) {
  std::vector<PageKey> keys;
  for (std::int32_t i = 0; i < n_pages; ++i) keys.push_back(key_of(name, i));
  return keys;
}

std::vector<std::byte> content_of(const PageKey& key) {
  Rng rng(key.hash);
  std::vector<std::byte> bytes(kPage);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.below(256));
  return bytes;
}

bool store(PageStore& store, const PageKey& key) {
  PageStore::Begun begun = PageStore::Begun::kBusy;
  while (begun == PageStore::Begun::kBusy) {
    begun = store.store(key, [&](std::span<std::byte> to) { std::ranges::copy(content_of(key), to.begin()); });
    if (begun == PageStore::Begun::kBusy) store.poll(true, [](std::uint64_t, std::span<const std::byte>) {});
  }
  return begun == PageStore::Begun::kYes;
}

void store_all(PageStore& s, const std::vector<PageKey>& keys) {
  for (const PageKey& key : keys) store(s, key);
  s.flush();
  s.check_invariants();
}

// Pages read, by number; absent: damaged.
std::map<std::uint64_t, std::vector<std::byte>> load(PageStore& s, const std::vector<PageKey>& keys) {
  std::map<std::uint64_t, std::vector<std::byte>> got;
  const auto take = [&](std::uint64_t tag, std::span<const std::byte> bytes) {
    if (!bytes.empty()) got[tag].assign(bytes.begin(), bytes.end());
  };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    while (s.load(keys[i], i) == PageStore::Begun::kBusy) s.poll(true, take);
  }
  while (s.in_flight() > 0) s.poll(true, take);
  s.check_invariants();
  return got;
}

void expect_content(PageStore& s, const std::vector<PageKey>& keys) {
  const auto got = load(s, keys);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_TRUE(got.contains(i)) << i;
    EXPECT_EQ(got.at(i), content_of(keys[i])) << i;
  }
}

class PageStoreOn : public testing::TestWithParam<DiskIo> {
 protected:
  void SetUp() override {
    if (GetParam() != DiskIo::kUring) return;
    try {
      open_slot_file(folder_.path() / "try", kSlot, DiskIo::kUring);
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  PageStore::Options options(std::int64_t slots = 100, std::uint64_t identity = 1) const {
    return {.folder = folder_.path() / "kv",
            .bytes = slots * static_cast<std::int64_t>(kSlot),
            .identity = identity,
            .io = GetParam()};
  }
  TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(, PageStoreOn, testing::Values(DiskIo::kPlain, DiskIo::kUring),
                         [](const auto& p) { return p.param == DiskIo::kPlain ? "Plain" : "Uring"; });

TEST_P(PageStoreOn, ReadsWhatItWrote) {
  PageStore s(kPage, options());
  const auto keys = sequence(1, 70);
  EXPECT_EQ(s.find(keys), 0);
  store_all(s, keys);
  EXPECT_EQ(s.find(keys), 70);
  EXPECT_EQ(s.find(std::span(keys).first(3)), 3);
  EXPECT_EQ(s.find(sequence(2, 3)), 0);
  expect_content(s, keys);
  EXPECT_FALSE(store(s, keys[5])) << "it is there";
  EXPECT_EQ(s.stats().stored, 70);
  EXPECT_EQ(s.stats().loaded, 70);
}

// Equal hashes of other tokens are other pages.
TEST_P(PageStoreOn, ComparesTokens) {
  PageStore s(kPage, options());
  store_all(s, sequence(1, 2));
  PageKey other = key_of(1, 0);
  other.tokens[7] += 1;
  EXPECT_FALSE(s.contains(other));
  EXPECT_EQ(s.find(std::vector<PageKey>{other}), 0);
  EXPECT_EQ(s.load(other, 0), PageStore::Begun::kNot);
  EXPECT_FALSE(store(s, other));
}

TEST_P(PageStoreOn, WhatIsInFlightIsNotDropped) {
  PageStore s(kPage, options(1));
  const auto keys = sequence(1, 1);
  ASSERT_TRUE(store(s, keys[0]));
  s.drop(keys[0]);
  ASSERT_TRUE(s.contains(keys[0])) << "it is being written";
  s.flush();
  ASSERT_EQ(s.load(keys[0], 7), PageStore::Begun::kYes);
  s.drop(keys[0]);
  ASSERT_TRUE(s.contains(keys[0])) << "it is being read";
  EXPECT_FALSE(store(s, key_of(2, 0))) << "the only slot is in use";
  std::vector<std::byte> got;
  while (s.in_flight() > 0)
    s.poll(true, [&](std::uint64_t, std::span<const std::byte> bytes) { got.assign(bytes.begin(), bytes.end()); });
  EXPECT_EQ(got, content_of(keys[0]));
  s.drop(keys[0]);
  EXPECT_FALSE(s.contains(keys[0]));
  s.check_invariants();
}

// A process that is killed loses nothing that it wrote, so only the order of calls shows what a power cut leaves.
TEST(PageJournal, ARewrittenOneIsFlushedBeforeItReplacesTheOther) {
  const TempFolder folder;
  PageJournal journal(folder.path() / "pages.journal", {.slot_bytes = kSlot, .identity = 1});
  take_named_files();
  ASSERT_TRUE(journal.rewrite({{.slot = 3, .key = key_of(1, 0), .checksum = 5}}));
  const std::vector<NamedFile> named = take_named_files();
  ASSERT_EQ(named.size(), 1u);
  EXPECT_EQ(named[0].name, (folder.path() / "pages.journal").string());
  EXPECT_TRUE(named[0].flushed);
}

TEST_P(PageStoreOn, SurvivesARestart) {
  const auto keys = sequence(1, 40);
  {
    PageStore s(kPage, options());
    store_all(s, keys);
  }
  PageStore s(kPage, options());
  s.check_invariants();
  EXPECT_EQ(s.find(keys), 40);
  expect_content(s, keys);
}

TEST_P(PageStoreOn, AnothersPagesAreForgotten) {
  { store_all(*std::make_unique<PageStore>(kPage, options()), sequence(1, 4)); }
  PageStore s(kPage, options(100, 2));
  EXPECT_EQ(s.find(sequence(1, 4)), 0);
  EXPECT_EQ(s.stats().pages, 0);
  store_all(s, sequence(1, 4));
  expect_content(s, sequence(1, 4));
}

TEST_P(PageStoreOn, LessRoomThanBeforeKeepsWhatFits) {
  { store_all(*std::make_unique<PageStore>(kPage, options(40)), sequence(1, 40)); }
  PageStore s(kPage, options(10));
  s.check_invariants();
  EXPECT_EQ(s.stats().pages, 10);
  expect_content(s, sequence(1, s.find(sequence(1, 40))));
}

// The ends of sequences go first, of the one used longest ago.
TEST_P(PageStoreOn, EvictsTheEndsOfWhatWasUsedLongestAgo) {
  PageStore s(kPage, options(20));
  store_all(s, sequence(1, 10));
  store_all(s, sequence(2, 10));
  EXPECT_EQ(s.find(sequence(1, 10)), 10);
  store_all(s, sequence(3, 4));
  EXPECT_EQ(s.find(sequence(2, 10)), 6);
  EXPECT_EQ(s.find(sequence(1, 10)), 10);
  EXPECT_EQ(s.find(sequence(3, 4)), 4);
  EXPECT_EQ(s.stats().evicted, 4);
  expect_content(s, sequence(2, 6));
}

TEST_P(PageStoreOn, ADamagedPageIsForgotten) {
  const auto keys = sequence(1, 6);
  { store_all(*std::make_unique<PageStore>(kPage, options()), keys); }
  {
    std::fstream file(options().folder / "pages.kv", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3 * kSlot + 4999);
    file.put('x');
    file.seekp(4 * kSlot + 5000);  // behind a page's end
    file.put('x');
  }
  PageStore s(kPage, options());
  ASSERT_EQ(s.find(keys), 6);
  const auto got = load(s, keys);
  std::int32_t lost = -1;
  for (std::int32_t i = 0; i < 6; ++i)
    if (!got.contains(i)) lost = i;
  ASSERT_GE(lost, 0);
  EXPECT_EQ(got.size(), 5u);
  EXPECT_EQ(s.find(keys), lost);
  EXPECT_EQ(s.stats().failed_reads, 1);
  store_all(s, keys);
  expect_content(s, keys);
}

// Two requests read it at once: it is forgotten when the last of them has seen that it is damaged.
TEST_P(PageStoreOn, ADamagedPageIsKeptWhileAnotherReadsIt) {
  const auto keys = sequence(1, 6);
  { store_all(*std::make_unique<PageStore>(kPage, options()), keys); }
  {
    std::fstream file(options().folder / "pages.kv", std::ios::in | std::ios::out | std::ios::binary);
    for (int slot = 0; slot < 6; ++slot) {
      file.seekp(slot * static_cast<std::streamoff>(kSlot));
      file.write("damage", 6);
    }
  }
  auto s = std::make_unique<PageStore>(kPage, options());
  try {
    EXPECT_TRUE(load(*s, {keys[3], keys[3], keys[3]}).empty());
  } catch (const std::out_of_range& e) {
    s.release();  // it would wait for reads that are lost
    FAIL() << e.what();
  }
  EXPECT_EQ(s->find(keys), 3);
  EXPECT_GT(s->stats().failed_reads, 1);
}

// The data file is gone, or shorter than the journal says.
TEST_P(PageStoreOn, AFileThatEndsTooSoonIsNoPage) {
  const auto keys = sequence(1, 6);
  { store_all(*std::make_unique<PageStore>(kPage, options()), keys); }
  std::filesystem::resize_file(options().folder / "pages.kv", 2 * kSlot + 100);
  PageStore s(kPage, options());
  EXPECT_EQ(load(s, keys).size(), 2u);
  EXPECT_EQ(s.stats().failed_reads, 4);
}

// Cut anywhere, or with any one byte changed, the journal gives whole entries and nothing that was not written.
TEST_P(PageStoreOn, AJournalIsReadToItsLastWholeEntry) {
  const auto keys = sequence(1, 3);
  { store_all(*std::make_unique<PageStore>(kPage, options()), keys); }
  const auto path = options().folder / "pages.journal";
  std::ifstream in(path, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(in), {});
  const auto pages_of = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    PageStore s(kPage, options());
    s.check_invariants();
    const auto got = load(s, keys);
    for (const auto& [i, content] : got) EXPECT_EQ(content, content_of(keys[i]));
    return got.size();
  };
  EXPECT_EQ(pages_of(whole), 3u);
  std::size_t before = 0;
  for (std::size_t n = 0; n < whole.size(); n += 23) {
    const std::size_t pages = pages_of(whole.substr(0, n));
    EXPECT_GE(pages, before);
    EXPECT_LT(pages, 3u);
    before = pages;
  }
  for (std::size_t at = 0; at < whole.size(); at += 19) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    EXPECT_LT(pages_of(damaged), 3u) << at;
  }
}

TEST_P(PageStoreOn, TheJournalDoesNotGrowForEver) {
  PageStore s(kPage, options(8));
  for (std::uint64_t name = 1; name < 200; ++name) store_all(s, sequence(name, 8));
  EXPECT_LT(std::filesystem::file_size(options().folder / "pages.journal"), 1100 * 184);
  expect_content(s, sequence(199, 8));
}

TEST_P(PageStoreOn, AFolderIsOneProcesss) {
  PageStore s(kPage, options());
  try {
    PageStore other(kPage, options());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kResource) << e.what();
  }
  EXPECT_THROW(PageStore(kPage, {.folder = folder_.path() / "small", .bytes = 4096}), Error);
}

// The process is killed in the middle of writing, again and again; whatever is found afterwards is right.
TEST_P(PageStoreOn, SurvivesKill9) {
  std::int32_t found = 0;
  for (int round = 0; round < 6; ++round) {
    int to_parent[2];
    ASSERT_EQ(::pipe(to_parent), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      PageStore s(kPage, options(64));
      for (std::uint64_t name = 1;; ++name) {
        for (const PageKey& key : sequence(round * 1000 + name, 8)) store(s, key);
        s.poll(false, [](std::uint64_t, std::span<const std::byte>) {});
        if (::write(to_parent[1], "x", 1) != 1) ::_exit(1);
      }
    }
    ::close(to_parent[1]);
    char byte = 0;
    for (int i = 0; i < 10 + 3 * round; ++i) ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ::close(to_parent[0]);
    PageStore s(kPage, options(64));
    s.check_invariants();
    EXPECT_GT(s.stats().pages, 0);
    for (std::uint64_t name = 1; name < 200; ++name) {
      const std::int32_t n = s.find(sequence(round * 1000 + name, 8));
      found += n;
      expect_content(s, sequence(round * 1000 + name, n));
    }
    EXPECT_EQ(s.stats().failed_reads, 0);
  }
  EXPECT_GT(found, 0);
}

// ---- what disks do

// Keeps slots in memory; fails, or damages, as it is told.
class FaultyFile final : public SlotFile {
 public:
  void read(std::uint64_t tag, std::int64_t slot, std::byte* to) override {
    Done done{.tag = tag, .error = slots_.contains(slot) ? 0 : EIO};
    if (done.error == 0) std::ranges::copy(slots_[slot], to);
    if (rng.below(100) < read_errors) done.error = EIO;
    if (rng.below(100) < damages) to[rng.below(kPage)] ^= std::byte{1};
    done_.push_back(done);
  }
  void write(std::uint64_t tag, std::int64_t slot, const std::byte* from) override {
    const bool fails = rng.below(100) < write_errors;
    if (!fails) slots_[slot].assign(from, from + kSlot);
    done_.push_back({.tag = tag, .error = fails ? ENOSPC : 0});
  }
  // In another order than they began, and not all at once.
  std::vector<Done> done(bool wait) override {
    std::vector<Done> out;
    for (std::size_t i = 0; i < done_.size();) {
      if (rng.below(2) == 0 && !(wait && out.empty() && i + 1 == done_.size())) {
        ++i;
        continue;
      }
      out.push_back(done_[i]);
      done_.erase(done_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return out;
  }
  int depth() const override { return 32; }

  Rng rng{1};
  std::uint64_t write_errors = 0, read_errors = 0, damages = 0;  // of a hundred

 private:
  std::map<std::int64_t, std::vector<std::byte>> slots_;
  std::vector<Done> done_;
};

TEST(PageStoreFaults, NothingWrongIsEverRead) {
  TempFolder folder;
  auto owned = std::make_unique<FaultyFile>();
  FaultyFile& file = *owned;
  PageStore s(kPage, {.folder = folder.path(), .bytes = 50 * static_cast<std::int64_t>(kSlot)}, std::move(owned));
  file.write_errors = 20;
  file.read_errors = 10;
  file.damages = 10;
  std::int64_t right = 0;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const auto keys = sequence(1 + file.rng.below(12), 8);
    store_all(s, keys);
    const auto there = sequence((keys[0].hash - 1) / 1000003, s.find(keys));
    for (const auto& [number, bytes] : load(s, there)) {
      ASSERT_EQ(bytes, content_of(there[number]));
      ++right;
    }
  }
  EXPECT_GT(right, 500);
  EXPECT_GT(s.stats().failed_writes, 100);
  EXPECT_GT(s.stats().failed_reads, 100);
}

// Pages whose writes are in flight are found and read all the same, and gone where writing fails.
TEST_P(PageStoreOn, APageIsReadWhileItIsWritten) {
  PageStore s(kPage, options());
  const auto keys = sequence(1, 4);
  for (const PageKey& key : keys) ASSERT_TRUE(store(s, key));
  EXPECT_EQ(s.find(keys), 4);
  expect_content(s, keys);
  EXPECT_EQ(s.stats().stored, 4);
}

TEST(PageStoreFaults, AFullDiskTakesNothing) {
  TempFolder folder;
  auto owned = std::make_unique<FaultyFile>();
  owned->write_errors = 100;
  PageStore s(kPage, {.folder = folder.path(), .bytes = 50 * static_cast<std::int64_t>(kSlot)}, std::move(owned));
  store_all(s, sequence(1, 30));
  EXPECT_EQ(s.find(sequence(1, 30)), 0);
  EXPECT_EQ(s.stats().failed_writes, 30);
  EXPECT_EQ(s.stats().pages, 0);
}

}  // namespace
}  // namespace mneme

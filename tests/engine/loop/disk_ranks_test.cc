// The disk under the prefix cache of a model on several ranks: each has the pages of its heads. HashModel compares what
// the ranks' pages hold in every step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "src/engine/loop/disk_follower.h"
#include "src/engine/session/session_ranks.h"
#include "tests/engine/loop/faulty_disk.h"
#include "tests/engine/loop/sharing.h"
#include "tests/parallel/ranks.h"
#include "tests/temp_folder.h"

namespace mneme {
namespace {

using parallel_test::in_threads;
using testing::Each;

constexpr std::int64_t kSlot = 4096;

struct Setup {
  std::int64_t pages = 1000, disk_pages = 1000;
  KvAdmission admission = KvAdmission::kReserve;
};

// A process of `size` ranks: `lead` is rank 0's. Returns what each has of its disk in the end.
std::vector<PageStore::Stats> live(const TempFolder& folder, int size, const Setup& setup,
                                   std::vector<DiskFaults>& faults, const std::function<void(Sharing&)>& lead,
                                   bool followers_have_disks = true) {
  std::vector<PageStore::Stats> stats(size);
  const std::vector<std::string> errors = in_threads(size, [&](Collective& ranks) {
    const int rank = ranks.rank();
    const DiskOptions disk{.folder = folder.path() / std::to_string(rank),
                           .bytes = setup.disk_pages * kSlot,
                           .wrap = [&faults, rank](std::unique_ptr<SlotFile> file) {
                             return std::make_unique<FaultyDisk>(std::move(file), faults[rank], kSlot);
                           }};
    if (rank == 0) {
      Sharing s({.prefix_cache = true, .n_slots = 0, .disk = disk}, setup.pages, 64, 16, setup.admission, &ranks);
      lead(s);
      s.work_to_the_end();
      stats[0] = s.keeper().disk()->stats();
      return;
    }
    EngineOptions o = Sharing::options(setup.pages, 64, 16, setup.admission);
    TestEngine test(o, 1, &ranks);
    RunningModel model;
    model.engine = std::move(test.engine);
    DiskFollower pages(model, followers_have_disks ? std::optional(disk) : std::nullopt);
    follow(model, [&](RankCall call, ByteReader& in) { pages.repeat(call, in); });
    pages.finish();
    stats[rank] = pages.stats();
  });
  EXPECT_THAT(errors, Each(""));
  return stats;
}

// One question about the document. Returns how many of its tokens came from elsewhere.
std::int32_t ask(Sharing& s, std::span<const TokenId> document, std::uint64_t seed) {
  const std::vector<GenerationInput> inputs = {input_of(question(document, seed))};
  const RequestId id = s.submit(inputs.front());
  s.finish();
  s.expect_own_answers({id}, inputs);
  return s.shared[id];
}

TEST(DiskRanks, APromptComesBackOnEveryRankAfterARestart) {
  for (const int size : {2, 3}) {
    TempFolder folder;
    const auto document = random_prompt(320, 1);
    std::vector<DiskFaults> faults(size);
    for (const std::int32_t shared : {0, 320, 320}) {
      const auto stats = live(folder, size, {}, faults, [&](Sharing& s) { EXPECT_EQ(ask(s, document, 5), shared); });
      for (const PageStore::Stats& of_rank : stats) {
        EXPECT_EQ(of_rank.pages, 10);
        EXPECT_EQ(of_rank.loaded, shared / kPageTokens);
      }
    }
  }
}

// A page counts where all ranks have it; what one has lost is computed and written again.
TEST(DiskRanks, ARankThatLostItsDiskGetsItBack) {
  TempFolder folder;
  const auto document = random_prompt(320, 1);
  std::vector<DiskFaults> faults(2);
  const auto asked = [&](std::int32_t shared) {
    live(folder, 2, {}, faults, [&](Sharing& s) { EXPECT_EQ(ask(s, document, 5), shared); });
  };
  asked(0);
  std::filesystem::remove_all(folder.path() / "1");
  for (int i = 0; i < 10; ++i) live(folder, 2, {}, faults, [&](Sharing& s) { ask(s, document, 5); });
  asked(320);
  std::filesystem::remove_all(folder.path() / "0");
  asked(0);
  asked(320);
}

TEST(DiskRanks, FollowersWithoutADiskLoadNothing) {
  TempFolder folder;
  const auto document = random_prompt(320, 1);
  std::vector<DiskFaults> faults(2);
  for (int i = 0; i < 2; ++i)
    live(
        folder, 2, {}, faults, [&](Sharing& s) { EXPECT_EQ(ask(s, document, 5), 0); }, false);
}

// Documents in memory for a third of them, a disk for half, and disks that err.
TEST(DiskRanks, DisksThatErr) {
  for (const KvAdmission admission : {KvAdmission::kReserve, KvAdmission::kForecast}) {
    TempFolder folder(TempFolder::memory());
    std::vector<DiskFaults> faults = {{.write_errors = 5, .read_errors = 5, .damages = 5},
                                      {.write_errors = 10, .read_errors = 5, .damages = 5}};
    std::int64_t loaded = 0;
    for (std::uint64_t life = 0; life < 3; ++life) {
      const auto stats =
          live(folder, 2, {.pages = 32, .disk_pages = 50, .admission = admission}, faults, [&](Sharing& s) {
            std::deque<GenerationInput> inputs;
            std::vector<RequestId> ids;
            Rng rng(life);
            for (int i = 0; i < 60; ++i) {
              inputs.push_back(input_of(question(random_prompt(320, 100 + rng.below(9)), rng.next())));
              ids.push_back(s.submit(inputs.back()));
              if (rng.below(3) == 0) s.finish();
            }
            s.finish();
            s.expect_own_answers(ids, {inputs.begin(), inputs.end()});
          });
      loaded += stats[0].loaded;
    }
    EXPECT_GT(loaded, 50);
    for (const DiskFaults& f : faults) EXPECT_GT(f.n_bad_reads, 0);
    EXPECT_GT(faults[0].n_write_errors + faults[1].n_write_errors, 0);
  }
}

}  // namespace
}  // namespace mneme

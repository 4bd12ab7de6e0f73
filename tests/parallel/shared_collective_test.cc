#include "src/parallel/shared_collective.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/error_message.h"
#include "tests/parallel/collective_cases.h"
#include "tests/parallel/ranks.h"
#include "tests/progress.h"

namespace mneme::parallel_test {
namespace {

using testing::Each;
using testing::HasSubstr;

TEST(SharedCollective, SumsInTheOrderOfTheRanks) {
  for (const int size : {1, 2, 3, 4})
    EXPECT_THAT(in_threads(size, [](Collective& ranks) { EXPECT_TRUE(reduces_rightly(ranks)); }), Each(""));
}

TEST(SharedCollective, GathersAndBroadcasts) {
  for (const int size : {1, 2, 4})
    EXPECT_THAT(in_threads(size, [](Collective& ranks) { EXPECT_TRUE(gathers_rightly(ranks)); }), Each(""));
}

TEST(SharedCollective, TheSameBetweenProcesses) {
  EXPECT_THAT(in_processes(3, [](Collective& r) { return reduces_rightly(r) && gathers_rightly(r); }), Each(0));
}

TEST(SharedCollective, ManySmallCallsInARow) {
  EXPECT_THAT(in_threads(4,
                         [](Collective& ranks) {
                           for (int i = 0; i < 300; ++i) {
                             float value = static_cast<float>(ranks.rank() + i);
                             ranks.all_reduce(std::span(&value, 1));
                             ASSERT_EQ(value, static_cast<float>(6 + 4 * i));
                             if (i % 7 == 0) ranks.barrier();
                           }
                         }),
              Each(""));
}

// Ranks that sleep for as long as nothing happens: an arrival wakes them. Without that, each barrier took a nap of 20 ms.
TEST(SharedCollective, AnArrivalWakesThoseThatSleep) {
  const std::shared_ptr<SharedRegion> region = SharedRegion::make(2);
  std::vector<std::string> errors(2);
  std::atomic<int> ended = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      SharedCollective ranks(region, r, {.seconds = 1e6, .looks = 0, .nap_seconds = 1e6});
      try {
        for (int i = 0; i < 200; ++i) ranks.barrier();
      } catch (const Error& e) {
        errors[r] = e.what();
      }
      ++ended;
    });
  }
  if (!wait_until([&] { return ended == 2; })) region->abort("nobody was woken");
  for (std::thread& t : threads) t.join();
  EXPECT_THAT(errors, Each(""));
}

TEST(SharedCollective, ARankThatEndsEndsAll) {
  const std::vector<std::string> errors = in_threads(3, [](Collective& ranks) {
    if (ranks.rank() == 1) return;
    float value = 0;
    ranks.all_reduce(std::span(&value, 1));
  });
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[0], HasSubstr("rank 1 ended"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 ended"));
}

TEST(SharedCollective, AKilledProcessEndsAll) {
  // The child is killed at a call of its own making, at random.
  std::mt19937 random(11);
  for (int round = 0; round < 3; ++round) {
    const int last = static_cast<int>(random() % 50);
    const std::vector<int> codes = in_processes(3, [&](Collective& ranks) {
      for (int i = 0;; ++i) {
        if (ranks.rank() == 2 && i == last) kill(getpid(), SIGKILL);
        float value = 1;
        ranks.all_reduce(std::span(&value, 1));
      }
      return true;
    });
    EXPECT_EQ(codes, (std::vector<int>{2, 2, -SIGKILL}));
  }
}

TEST(SharedCollective, AStalledRankEndsAllInTime) {
  const std::shared_ptr<SharedRegion> region = SharedRegion::make(2);
  SharedCollective stalled(region, 1);  // never calls
  SharedCollective waits(region, 0, {.seconds = 0.2});
  EXPECT_THAT(error_message(ErrorKind::kDevice, [&] { waits.barrier(); }),
              HasSubstr("rank 1 did not answer within 0.2 s"));
  EXPECT_THAT(error_message(ErrorKind::kDevice, [&] { stalled.barrier(); }), HasSubstr("did not answer"));
}

TEST(SharedCollective, AbortEndsAWaitFromAnyThread) {
  const std::shared_ptr<SharedRegion> region = SharedRegion::make(2);
  SharedCollective absent(region, 1);
  SharedCollective waits(region, 0, kPatient);
  std::thread other([&] { region->abort("the device failed"); });
  EXPECT_THAT(error_message(ErrorKind::kDevice, [&] { waits.barrier(); }), HasSubstr("the device failed"));
  other.join();
}

TEST(SharedCollective, DifferentCallsAreFoundOut) {
  for (const bool other_size : {false, true}) {
    const std::vector<std::string> errors = in_threads(2, [&](Collective& ranks) {
      std::vector<float> values(ranks.rank() == 0 && other_size ? 3 : 2);
      if (ranks.rank() == 1 && !other_size) return ranks.barrier();
      ranks.all_reduce(values);
    });
    EXPECT_THAT(errors, Each(HasSubstr("do not make the same calls")));
  }
}

TEST(SharedCollective, RanksThatDisagreeNameWhat) {
  const std::vector<std::string> errors =
      in_threads(3, [](Collective& ranks) { expect_agreement(ranks, "weights", ranks.rank() == 2 ? 1 : 0); });
  EXPECT_THAT(errors, Each(HasSubstr("ranks 0 and 2 have not the same weights")));
}

TEST(SharedRegion, ADescriptorIsChecked) {
  EXPECT_THAT(error_message(ErrorKind::kOption, [] { SharedRegion::make(65); }), HasSubstr("1 to 64"));
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  EXPECT_THAT(error_message(ErrorKind::kDevice, [&] { SharedRegion::open(pipes[0]); }), HasSubstr("no memory"));
  close(pipes[1]);
  const auto region = SharedRegion::make(2);
  EXPECT_EQ(SharedRegion::open(dup(region->descriptor()))->size(), 2);
}

TEST(RankRange, EqualParts) {
  EXPECT_EQ(rank_range(12, 2, 4).first, 6);
  EXPECT_EQ(rank_range(12, 2, 4).end, 9);
}

}  // namespace
}  // namespace mneme::parallel_test

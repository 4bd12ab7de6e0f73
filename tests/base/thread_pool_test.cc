#include "src/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace mneme {
namespace {

const int kSizes[] = {1, 2, 3, 8};

TEST(ThreadPool, EveryWorkerRunsOnce) {
  for (int size : kSizes) {
    ThreadPool pool(size);
    EXPECT_EQ(pool.size(), size);
    std::vector<int> calls(size, 0);
    pool.run([&](int worker) { ++calls.at(worker); });
    for (int n : calls) EXPECT_EQ(n, 1) << "of " << size << " threads";
  }
}

TEST(ThreadPool, TheCallerIsWorkerZero) {
  ThreadPool pool(3);
  std::vector<std::thread::id> ids(3);
  pool.run([&](int worker) { ids[worker] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
  EXPECT_NE(ids[2], ids[0]);
  EXPECT_NE(ids[1], ids[2]);
}

TEST(ThreadPool, ManyRoundsSeeEachOthersWrites) {
  ThreadPool pool(3);
  std::vector<std::int64_t> sums(3, 0);
  std::int64_t expected = 0;
  for (int round = 0; round < 1000; ++round) {
    // Each round reads what another worker wrote in the round before: a missing barrier shows as a wrong sum.
    std::vector<std::int64_t> before = sums;
    pool.run([&](int worker) {
      const std::size_t w = worker;
      sums[w] = before[(w + 1) % 3] + 1;
    });
    ++expected;
  }
  for (std::int64_t s : sums) EXPECT_EQ(s, expected);
}

TEST(ThreadPool, WakesWorkersThatWentToSleep) {
  ThreadPool pool(2);
  std::atomic<int> calls{0};
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // much longer than a worker spins
    pool.run([&](int) { ++calls; });
  }
  EXPECT_EQ(calls.load(), 10);
}

TEST(ThreadPool, TheCallerWaitsForASlowWorker) {
  ThreadPool pool(2);
  bool done = false;
  pool.run([&](int worker) {
    if (worker != 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  });
  EXPECT_TRUE(done);
}

TEST(ThreadPool, ParallelForCoversEveryItemOnce) {
  for (int size : kSizes) {
    ThreadPool pool(size);
    for (std::int64_t n : {0, 1, 2, 7, 31, 32, 33, 1000})
      for (std::int64_t grain : {-1, 0, 1, 3, 32, 999, 1000, 5000}) {
        std::vector<std::atomic<int>> seen(n);
        std::atomic<bool> bad_piece{false};
        pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int worker) {
          if (begin >= end || end > n || end - begin > std::max<std::int64_t>(grain, 1) || worker < 0 || worker >= size)
            bad_piece = true;
          for (std::int64_t i = begin; i < end; ++i) ++seen[i];
        });
        EXPECT_FALSE(bad_piece) << "n " << n << " grain " << grain << " threads " << size;
        for (const auto& s : seen) ASSERT_EQ(s.load(), 1) << "n " << n << " grain " << grain << " threads " << size;
      }
  }
}

TEST(ThreadPool, AnExceptionOfAnyWorkerReachesTheCaller) {
  for (int size : kSizes)
    for (int thrower = 0; thrower < size; ++thrower) {
      ThreadPool pool(size);
      try {
        pool.run([&](int worker) {
          if (worker == thrower) throw std::runtime_error("worker " + std::to_string(worker));
        });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::runtime_error& e) {
        EXPECT_EQ(e.what(), "worker " + std::to_string(thrower));
      }
    }
}

TEST(ThreadPool, ExceptionsOfAllWorkersAreOneAndThePoolGoesOn) {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.run([](int) { throw std::runtime_error("all"); }), std::runtime_error);
    std::atomic<int> calls{0};
    EXPECT_NO_THROW(pool.run([&](int) { ++calls; })) << "an exception must not be thrown twice";
    EXPECT_EQ(calls.load(), 4);
  }
}

TEST(ThreadPool, ParallelForPassesExceptionsOn) {
  for (int size : kSizes) {
    ThreadPool pool(size);
    EXPECT_THROW(pool.parallel_for(100, 1,
                                   [](std::int64_t begin, std::int64_t, int) {
                                     if (begin == 57) throw std::runtime_error("57");
                                   }),
                 std::runtime_error);
    std::atomic<std::int64_t> sum{0};
    pool.parallel_for(10, 1, [&](std::int64_t begin, std::int64_t, int) { sum += begin; });
    EXPECT_EQ(sum.load(), 45);
  }
}

TEST(ThreadPool, TwoPoolsTakeTurns) {
  ThreadPool a(2), b(3);
  std::atomic<int> calls{0};
  for (int i = 0; i < 100; ++i) {
    a.run([&](int) { ++calls; });
    b.run([&](int) { ++calls; });
  }
  EXPECT_EQ(calls.load(), 500);
}

TEST(ThreadPool, ManyPoolsComeAndGo) {
  for (int i = 0; i < 100; ++i) {
    std::atomic<int> calls = 0;
    {
      ThreadPool pool(1 + i % 4);
      if (i % 2 == 0) pool.run([&](int) { ++calls; });
    }
    EXPECT_EQ(calls, i % 2 == 0 ? 1 + i % 4 : 0) << i;
  }
}

TEST(ThreadPool, PinnedThreadsWork) {
  // In its own thread: pinning moves the caller to one CPU permanently.
  std::thread([] {
    ThreadPool pool(2, Pinning::kPinned);
    std::atomic<int> calls{0};
    pool.run([&](int) { ++calls; });
    EXPECT_EQ(calls.load(), 2);
  }).join();
}

TEST(ThreadPoolDeathTest, UseFromInsideItsOwnWorkAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.run([&](int) { pool.run([](int) {}); });
      },
      "from inside its own work");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.parallel_for(10, 1, [&](std::int64_t, std::int64_t, int) {
          pool.parallel_for(10, 1, [](std::int64_t, std::int64_t, int) {});
        });
      },
      "from inside its own work");
  EXPECT_DEATH({ ThreadPool pool(0); }, "at least one thread");
}

// The shortcut for work of one range must not hide nesting that would abort with more work or more threads.
TEST(ThreadPoolDeathTest, NestingAbortsOnTheShortCutToo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int size : {1, 2})
    EXPECT_DEATH(
        {
          ThreadPool pool(size);
          pool.parallel_for(1, 1, [&](std::int64_t, std::int64_t, int) { pool.run([](int) {}); });
        },
        "from inside its own work");
}

TEST(ThreadPool, AvailableCpusIsPositive) {
  EXPECT_GE(available_cpus(), 1);
}

}  // namespace
}  // namespace mneme

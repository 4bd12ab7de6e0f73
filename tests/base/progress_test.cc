#include "tests/progress.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <ctime>

namespace mneme {
namespace {

using namespace std::chrono_literals;

// A process that computes until it is killed.
class Busy {
 public:
  Busy() : pid_(::fork()) {
    if (pid_ != 0) return;
    for (;;) std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Busy() { end(); }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

TEST(Progress, OfChildrenCountsAndTheLackOfItIsSeen) {
  Busy child;
  const double before = cpu_seconds_of_tree(::getpid());
  ASSERT_GE(before, 0);
  Progress progress(2);
  for (int i = 0; i < 60; ++i) {
    EXPECT_FALSE(progress.stalled());
    std::this_thread::sleep_for(50ms);
  }
  const double used = cpu_seconds_of_tree(::getpid()) - before;
  EXPECT_GT(used, 0.1);
  child.end();
  EXPECT_GE(cpu_seconds_of_tree(::getpid()) - before, used);  // what has ended still counts
  bool stalled = false;
  for (int i = 0; i < 600 && !stalled; ++i) {
    std::this_thread::sleep_for(50ms);
    stalled = progress.stalled();
  }
  EXPECT_TRUE(stalled);
}

TEST(Progress, AWaitEndsWithWhatItWaitsFor) {
  int asked = 0;
  EXPECT_TRUE(wait_until([&] { return ++asked == 3; }, 1ms));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace mneme

#include "src/base/numa.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "src/base/error.h"

namespace mneme {
namespace {

TEST(ParseCpuList, ReadsRangesAndSingles) {
  EXPECT_EQ(parse_cpu_list("0"), (std::vector<int>{0}));
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  for (const char* bad : {"", "a", "3-1", "0-", "1-x", "-1", "0-99999999"})
    EXPECT_TRUE(parse_cpu_list(bad).empty()) << bad;
}

// A machine of two nodes as Linux describes it: CPUs of node 0 are 0-1 and 4-5, node 1 has 2-3, node 2 memory only.
class FakeMachine : public testing::Test {
 protected:
  void SetUp() override {
    // One folder per test: tests run in parallel.
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) / (std::string("mneme_numa_nodes_") + info->name());
    const auto write = [&](const std::filesystem::path& path, const std::string& text) {
      std::filesystem::create_directories((folder_ / path).parent_path());
      std::ofstream(folder_ / path) << text << "\n";
    };
    write("online", "0-2");
    write("node0/cpulist", "0-1,4-5");
    write("node1/cpulist", "2-3");
    write("node2/cpulist", "");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(FakeMachine, NodesAreThoseWithCpus) {
  const std::vector<NumaNode> expected{{0, {0, 1, 4, 5}}, {1, {2, 3}}};
  EXPECT_EQ(read_numa_nodes(folder_), expected);
  EXPECT_TRUE(read_numa_nodes(folder_ / "nothing").empty());
}

TEST_F(FakeMachine, ThreadsAreDistributedOrIsolated) {
  const std::vector<NumaNode> nodes = read_numa_nodes(folder_);
  const std::vector<int> all{0, 1, 2, 3, 4, 5}, some{1, 3, 5};
  EXPECT_EQ(assign_cpus(NumaPolicy::kNone, all, nodes, 2), all);
  EXPECT_EQ(assign_cpus(NumaPolicy::kDistribute, all, nodes, 2), (std::vector<int>{0, 2, 1, 3, 4, 5}));
  EXPECT_EQ(assign_cpus(NumaPolicy::kIsolate, all, nodes, 2), (std::vector<int>{2, 3}));
  EXPECT_EQ(assign_cpus(NumaPolicy::kIsolate, all, nodes, 5), (std::vector<int>{0, 1, 4, 5}));
  // Only allowed CPUs are assigned; a CPU outside the mask does not count for its node.
  EXPECT_EQ(assign_cpus(NumaPolicy::kDistribute, some, nodes, 1), (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(assign_cpus(NumaPolicy::kIsolate, some, nodes, 3), (std::vector<int>{3}));
  EXPECT_EQ(assign_cpus(NumaPolicy::kIsolate, std::vector<int>{0}, nodes, 3), (std::vector<int>{0}));
  // CPUs that belong to no node are used when no others are allowed.
  EXPECT_EQ(assign_cpus(NumaPolicy::kDistribute, std::vector<int>{9}, nodes, 9), (std::vector<int>{9}));
}

TEST(MakeThreadPool, ComputesUnderEveryPolicy) {
  for (NumaPolicy policy : {NumaPolicy::kNone, NumaPolicy::kDistribute, NumaPolicy::kIsolate}) {
    const auto pool = make_thread_pool(3, Pinning::kNone, policy);
    EXPECT_EQ(pool->size(), 3);
    std::atomic<int> ran{0};
    pool->run([&](int) { ran.fetch_add(1); });
    EXPECT_EQ(ran.load(), 3);
  }
  EXPECT_EQ(make_thread_pool(0, Pinning::kNone, NumaPolicy::kNone)->size(), available_cpus());
}

}  // namespace
}  // namespace mneme

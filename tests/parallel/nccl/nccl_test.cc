// Loading, versions, bootstrap and failures of NCCL, by libraries of the test's own: no GPU is needed. What the real
// library computes on GPUs is not tested here.
#include <gmock/gmock.h>

#include <array>
#include <span>
#include <vector>

#include "src/parallel/nccl/nccl_collective.h"
#include "tests/error_message.h"
#include "tests/parallel/ranks.h"

namespace mneme::parallel_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

std::string load_error(const std::string& path) {
  return error_message(ErrorKind::kDevice, [&] { NcclLibrary library(path); });
}

TEST(NcclLibrary, AMissingOneSaysHowToGetIt) {
  EXPECT_THAT(load_error("/nowhere/libnccl.so.2"),
              AllOf(HasSubstr("/nowhere/libnccl.so.2"), HasSubstr("pip install nvidia-nccl-cu13")));
}

TEST(NcclLibrary, VersionsAndFunctionsAreChecked) {
  EXPECT_EQ(NcclLibrary(FAKE_NCCL).version_text(), "2.28.9");
  EXPECT_THAT(load_error(FAKE_NCCL_OLD), HasSubstr("is NCCL 2.10.3: expected 2.18 or newer"));
  EXPECT_THAT(load_error(FAKE_NCCL_PARTIAL), HasSubstr("it has no ncclBroadcast"));
}

TEST(NcclLibrary, LooksIntoPythonEnvironments) {
  EXPECT_EQ(NcclLibrary::candidates().front(), "libnccl.so.2");
}

TEST(NcclCollective, RanksMeetAndExchange) {
  const NcclLibrary library(FAKE_NCCL);
  EXPECT_THAT(in_threads(3,
                         [&](Collective& ranks) {
                           NcclCollective nccl(library, ranks);
                           for (int round = 0; round < 20; ++round) {
                             std::vector<float> values(5, static_cast<float>(ranks.rank() + round));
                             nccl.all_reduce(values.data(), values.data(), values.size(), nullptr);
                             EXPECT_EQ(values, std::vector<float>(5, static_cast<float>(3 + 3 * round)));
                             const int mine = ranks.rank();
                             std::array<int, 3> all{};
                             nccl.all_gather(&mine, all.data(), sizeof mine, nullptr);
                             EXPECT_EQ(all, (std::array<int, 3>{0, 1, 2}));
                             int told = ranks.rank() * 7;
                             nccl.broadcast(&told, sizeof told, 2, nullptr);
                             EXPECT_EQ(told, 14);
                           }
                           nccl.check();
                           ranks.barrier();
                         }),
              Each(""));
}

TEST(NcclCollective, AFailedStartEndsAllRanks) {
  const NcclLibrary library(FAKE_NCCL_INIT_FAILS);
  const std::vector<std::string> errors =
      in_threads(2, [&](Collective& ranks) { NcclCollective nccl(library, ranks); });
  EXPECT_THAT(errors, Each(HasSubstr("ncclCommInitRank: unhandled system error (NCCL 2.28.9)")));
}

TEST(NcclCollective, AnErrorOfAnotherRankEndsAllRanks) {
  const NcclLibrary library(FAKE_NCCL_ASYNC_ERROR);
  const std::vector<std::string> errors = in_threads(2, [&](Collective& ranks) {
    NcclCollective nccl(library, ranks);
    if (ranks.rank() == 0) nccl.check();
    ranks.barrier();
  });
  EXPECT_THAT(errors, Each(HasSubstr("remote process exited")));
}

TEST(NcclCollective, AfterAnAbortEveryCallFails) {
  const NcclLibrary library(FAKE_NCCL);
  EXPECT_THAT(in_threads(1,
                         [&](Collective& ranks) {
                           NcclCollective nccl(library, ranks);
                           nccl.abort("stalled");
                           nccl.abort("again");
                           float value = 0;
                           nccl.all_reduce(&value, &value, 1, nullptr);
                         }),
              Each(HasSubstr("ncclAllReduce: the ranks stopped")));
}

}  // namespace
}  // namespace mneme::parallel_test

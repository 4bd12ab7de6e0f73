#include "src/parallel/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/error_message.h"

namespace mneme {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

std::optional<RankPlace> place_in(const Variables& variables) {
  return rank_place([&](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

TEST(RankPlace, OfEveryLauncher) {
  struct Case {
    Variables variables;
    std::string launcher;
    int rank, size, local;
  };
  const std::vector<Case> cases = {
      {{{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}}, "torchrun", 9, 16, 1},
      {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}},
       "Open MPI",
       1,
       2,
       0},
      {{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}, "PMI", 3, 4, 3},
      {{{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "5"}}, "Slurm", 5, 8, 5},
      {{{"MNEME_RANK", "1"}, {"MNEME_RANKS", "2"}, {"MNEME_RANK_MEMORY", "7"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}},
       "mneme",
       1,
       2,
       1}};
  for (const Case& c : cases) {
    const auto place = place_in(c.variables);
    ASSERT_TRUE(place) << c.launcher;
    EXPECT_EQ(place->launcher, c.launcher);
    EXPECT_EQ(place->rank, c.rank);
    EXPECT_EQ(place->size, c.size);
    EXPECT_EQ(place->local_rank, c.local);
  }
  EXPECT_FALSE(place_in({}));
  EXPECT_FALSE(place_in({{"RANK", "0"}}));
}

TEST(RankPlace, ErrorsNameTheVariable) {
  const auto message = [](const Variables& v) { return error_message(ErrorKind::kOption, [&] { place_in(v); }); };
  EXPECT_THAT(message({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK: expected a number, found \"x\""));
  EXPECT_THAT(message({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("no rank 2 of 2"));
  EXPECT_THAT(message({{"MNEME_RANK", "0"}, {"MNEME_RANKS", "2"}}), HasSubstr("MNEME_RANK_MEMORY"));
}

TEST(RankPlace, GpusByNumber) {
  EXPECT_EQ(parse_gpu_list("1,0", 2), (std::vector<int>{1, 0}));
  const auto message = [](const char* text) {
    return error_message(ErrorKind::kOption, [&] { parse_gpu_list(text, 2); });
  };
  EXPECT_THAT(message("0,0"), HasSubstr("GPU 0 is named twice"));
  EXPECT_THAT(message("0"), HasSubstr("1 GPUs for --tensor-parallel-size 2"));
  for (const char* text : {"", "a,b", "0,", "0;1"}) EXPECT_THAT(message(text), HasSubstr("expected numbers")) << text;
}

}  // namespace
}  // namespace mneme

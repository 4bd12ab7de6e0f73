// This process's place among the ranks: from our own variables (set by the rank that starts the others), or those
// of torchrun, Open MPI, PMI and Slurm.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mneme {

struct RankPlace {
  int rank = 0, size = 1;
  int local_rank = 0;      // on its host: the GPU it takes
  std::string launcher;    // "mneme", "torchrun", "Open MPI", "PMI", "Slurm"
  int shared_region = -1;  // "mneme": the descriptor of SharedRegion; -1: ranks on several hosts
};

// `variable` looks a name up in the environment.
//
// Errors  kOption: a launcher's variables that are no numbers, or no rank of its size; some of them missing.
std::optional<RankPlace> rank_place(const std::function<std::optional<std::string>(const char* name)>& variable);
std::optional<RankPlace> rank_place_of_environment();

// GPUs by number: "0,1". Errors  kOption: another text, a GPU named twice, another number of them than ranks.
std::vector<int> parse_gpu_list(std::string_view text, int ranks);

}  // namespace mneme

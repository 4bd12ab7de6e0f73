#include "src/parallel/rank_place.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "src/base/error.h"

namespace mneme {
namespace {

struct Launcher {
  std::string_view name;
  const char *rank, *size, *local_rank;
};
constexpr std::array<Launcher, 5> kLaunchers = {{
    {"mneme", "MNEME_RANK", "MNEME_RANKS", "MNEME_LOCAL_RANK"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "PMI_RANK"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
}};

std::optional<int> number(const std::string& text) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoi(text);
}

}  // namespace

std::optional<RankPlace> rank_place(const std::function<std::optional<std::string>(const char*)>& variable) {
  for (const Launcher& l : kLaunchers) {
    const auto rank = variable(l.rank), size = variable(l.size);
    if (!rank || !size) continue;
    const auto local = variable(l.local_rank);
    const auto expect = [&](const char* name, const std::string& text) {
      const auto n = number(text);
      if (!n) fail(ErrorKind::kOption, "{}: expected a number, found \"{}\"", name, text);
      return *n;
    };
    RankPlace place{.rank = expect(l.rank, *rank), .size = expect(l.size, *size), .launcher = std::string(l.name)};
    place.local_rank = local ? expect(l.local_rank, *local) : place.rank;
    if (place.size < 1 || place.rank >= place.size)
      fail(ErrorKind::kOption, "{}: there is no rank {} of {}", l.rank, place.rank, place.size);
    if (l.name == "mneme") {
      const auto region = variable("MNEME_RANK_MEMORY");
      if (!region) fail(ErrorKind::kOption, "MNEME_RANK_MEMORY is missing beside MNEME_RANK");
      if (!region->empty()) place.shared_region = expect("MNEME_RANK_MEMORY", *region);
    }
    return place;
  }
  return std::nullopt;
}

std::optional<RankPlace> rank_place_of_environment() {
  return rank_place([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

std::vector<int> parse_gpu_list(std::string_view text, int ranks) {
  std::vector<int> gpus;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const auto gpu = number(std::string(text.substr(at, end - at)));
    if (!gpu) fail(ErrorKind::kOption, "--gpus: expected numbers, as in 0,1, found \"{}\"", text);
    if (std::find(gpus.begin(), gpus.end(), *gpu) != gpus.end())
      fail(ErrorKind::kOption, "--gpus: GPU {} is named twice", *gpu);
    gpus.push_back(*gpu);
    at = end + 1;
  }
  if (std::ssize(gpus) != ranks)
    fail(ErrorKind::kOption, "--gpus: {} GPUs for --tensor-parallel-size {}", gpus.size(), ranks);
  return gpus;
}

}  // namespace mneme

// This process as one of the ranks of a model: rank 0 starts the others of its host as processes with its own command
// line, or a launcher (torchrun, Open MPI, Slurm) has started all of them.
//
// A process is a rank of one group at most, as it is with MPI: current() is that group. Followers ignore SIGINT and
// SIGTERM, which a terminal and a supervisor send to all: rank 0 lets answers end, then they end too. A follower never
// outlives the process that started it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/parallel/collective.h"
#include "src/parallel/rank_place.h"

namespace mneme {

struct RankOptions {
  int tensor_parallel = 1, pipeline_parallel = 1;
  int n_nodes = 1, node_rank = 0;
  std::string address;  // HOST:PORT of rank 0; needed where ranks are on several hosts or a launcher started them
  std::string gpus;     // "0,1": of this host's ranks; empty: 0, 1, ...
  bool on_device = false;
  int size() const { return tensor_parallel * pipeline_parallel; }
};

class RankGroup {
 public:
  // Null: the options name one rank. `build`: what all ranks must have in common of the program; `options`: of
  // what they were asked.
  //
  // Errors  kOption: numbers that do not fit each other, GPUs named twice, a launcher with another number of ranks, an
  //         address in use. kDevice: another rank has another build or other options, or does not come. kResource.
  static std::unique_ptr<RankGroup> join(const RankOptions& options, const std::string& build,
                                         const std::string& what_is_asked);
  // Null: this process is no rank.
  static RankGroup* current() noexcept;
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  bool leads() const { return place_.rank == 0; }
  // Whether rank 0 of this host, which says what went wrong, started this process.
  bool was_started_by_rank() const { return place_.launcher == "mneme"; }
  Collective& world() const { return *world_; }
  // Tests: ranks of this host share a GPU (MNEME_RANKS_SHARE_GPU).
  bool shares_gpu() const;
  // Whether the ranks talk by memory of one host.
  bool shares_memory() const { return shares_memory_; }
  int ranks_here() const { return ranks_here_; }
  const RankOptions& options() const { return options_; }

 private:
  RankGroup(const RankOptions& options, const RankPlace& place);
  void start_others();
  void take_gpu(int local_rank) const;
  void take_share_of_host(int local_rank) const;

  RankOptions options_;
  RankPlace place_;
  int ranks_here_ = 1;
  bool shares_memory_ = false;
  std::unique_ptr<Collective> world_;
  std::vector<int> children_;
};

// Watches the other ranks while it lives, also between computations.
class RankWatch {
 public:
  // Calls `on_failure` once, on a thread of its own, when one is lost. A process that still has its watch some time later
  // is ended with code 1.
  RankWatch(const RankGroup& group, std::function<void(const std::string& why)> on_failure);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

 private:
  void run(Collective& world, const std::function<void(const std::string& why)>& on_failure);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace mneme

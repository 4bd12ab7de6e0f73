// A rank's engine: its share of the model, and the leader's options.
#pragma once

#include <memory>

#include "mneme/options.h"
#include "src/base/progress.h"
#include "src/base/thread_pool.h"
#include "src/engine/engine.h"
#include "src/engine/session/session_file.h"
#include "src/formats/checkpoint.h"
#include "src/parallel/rank_group.h"

namespace mneme {

struct RankSetup {
  Collective* world = nullptr;  // null: one rank
  int ranks_here = 1;           // on this machine
  bool shares_gpu = false;      // RankGroup::shares_gpu()
  RankSplit split = RankSplit::kHeads;
};
// RankGroup::current()'s.
RankSetup process_ranks();

// The leader's options on every rank; threads, pinning and memory nodes stay the rank's own. Rank 0 alone knows how long
// its prompt is and how much memory it takes.
EngineOptions options_of_leader(Collective& world, const EngineOptions& mine);

// Errors  kDevice: the ranks have not the same model. kOption, kUnsupported: as rank_checkpoint(). As Engine's.
std::unique_ptr<Engine> rank_engine(const RankSetup& ranks, std::unique_ptr<Checkpoint> whole,
                                    const SessionIdentity& identity, const EngineOptions& options,
                                    std::unique_ptr<ThreadPool> pool, const ProgressFn& progress);

}  // namespace mneme

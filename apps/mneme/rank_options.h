// One model over several ranks: options, and what a process does that is not rank 0.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>

#include "mneme/options.h"
#include "src/engine/session/session_ranks.h"
#include "src/parallel/rank_group.h"

namespace mneme::cli {

// --tensor-parallel-size, --pipeline-parallel-size, --gpus, --nnodes, --node-rank, --dist-init-addr.
void add_rank_options(CLI::App& command, RankOptions& options);

// Starts the other ranks, or takes this process's place among them; null: one rank is asked for. Call before anything
// that only rank 0 may do (standard input, files, ports).
//
// Errors  as RankGroup::join(); kOption: --gpus without --device cuda.
std::unique_ptr<RankGroup> join_ranks(RankOptions options, const EngineOptions& engine);

// What every other rank does: repeats the leader's calls until it ends. The exit code. `disk`: what repeats
// calls about pages on a disk, for programs that have one.
//
// Errors  of ranks that a launcher started; what goes wrong in those that rank 0 started, rank 0 says.
int follow_leader(const RankGroup& ranks, const std::filesystem::path& model, const EngineOptions& engine,
                  const std::function<DiskCalls(const RunningModel& running)>& disk = {});

}  // namespace mneme::cli

// Sessions of a model that several ranks share, and a follower's whole life.
#pragma once

#include <functional>

#include "src/engine/ranks/rank_link.h"
#include "src/engine/session/session_store.h"

namespace mneme {

// A follower: repeats the leader's calls until the leader ends. `disk`: those that are about pages on a disk, in a
// program that knows them (engine/loop/disk_follower.h).
//
// Errors  kDevice.
using DiskCalls = std::function<void(RankCall call, ByteReader& arguments)>;
void follow(const RunningModel& model, const DiskCalls& disk = {});

// The leader's: every rank writes a part of its heads, and rank 0 the manifest when all of them are there.
//
// Errors  kFile: some rank could not; what stood at `path` before stands.
void save_by_ranks(const RunningModel& model, RequestId id, SessionContent content, const std::filesystem::path& path,
                   Links links);
// The leader's: every rank reads its heads, whatever number of ranks saved them.
//
// Errors  as Session::restore(), of any rank: no rank has the sequence then.
RestoredSequence restore_by_ranks(const RunningModel& model, const std::filesystem::path& path, Links links);

}  // namespace mneme

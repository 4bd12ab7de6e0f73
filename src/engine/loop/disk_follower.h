// The disk of a rank that follows: pages of its own heads, written, read and added as rank 0's disk tier says.
//
// Threads   the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "src/engine/loop/disk_pages.h"
#include "src/engine/ranks/rank_link.h"

namespace mneme {

class DiskFollower {
 public:
  // Without options it has no page, and nothing is added on any rank. Errors  as PageStore.
  DiskFollower(const RunningModel& model, const std::optional<DiskOptions>& options);
  ~DiskFollower();
  DiskFollower(const DiskFollower&) = delete;
  DiskFollower& operator=(const DiskFollower&) = delete;

  // A call of kDiskStore to kDiskDrop.
  void repeat(RankCall call, ByteReader& in);
  // Waits for what is in flight.
  void finish();
  PageStore::Stats stats() const { return store_ ? store_->stats() : PageStore::Stats{}; }

 private:
  void store(RequestId id, const PageKey& key);
  void load(std::uint64_t tag, const PageKey& key);
  void add(RequestId id, std::uint64_t tag);
  void drop(std::uint64_t number);
  void poll();

  const RunningModel& model_;
  std::optional<PageStore> store_;
  std::optional<PageStaging> staging_;                    // of one page; with a store
  std::map<std::uint64_t, std::vector<std::byte>> here_;  // read, and not yet added; by tag
  std::set<std::uint64_t> in_flight_;
};

}  // namespace mneme

// Host memory under the device's: pages of sequences that do not run, stored when they lose their room there, and copied
// back when a prompt begins with them or a preempted answer goes on.
//
// Order     as the disk's (disk_tier.h), by which pages are found as well; but nothing waits: a copy is ordered before
//           what is computed after it.
// Threads   the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/engine/loop/disk_pages.h"
#include "src/engine/lower_tier.h"
#include "src/kv/host_store.h"

namespace mneme {

class HostTier final : public LowerTier {
 public:
  // Errors  as HostStore.
  HostTier(RunningModel& model, std::int64_t bytes);

  // A kept sequence: the computed pages of its first tokens are stored when it loses them.
  void keep(RequestId id, std::span<const TokenId> tokens, const std::string& salt);
  // It is about to go: all of its pages are stored now; or none, as another sequence has them.
  void write_now(RequestId id);
  void drop(RequestId id) { kept_.erase(id); }

  // Tokens that a sequence begins with and that are here, in whole pages.
  std::int32_t find(std::span<const TokenId> tokens, const std::string& salt);
  // A kept sequence of these tokens, of which `from` (if valid) has n_shared. It has as many as there is room for, and
  // make_room makes room as DiskTier::work() says. Requires  find() has just told so many.
  RequestId fetch(std::span<const TokenId> tokens, const std::string& salt, RequestId from, std::int32_t n_shared,
                  FunctionRef<void(std::int64_t blocks)> make_room);

  void kept_loses(RequestId id, const SequenceCache& cache) override;
  bool park(RequestId id, std::span<const std::int32_t> tokens, const SequenceCache& cache,
            std::int32_t first_page) override;
  bool bring_back(RequestId id, SequenceCache& cache, std::int32_t first_page) override;
  void forget(RequestId id) override;

  const HostStore& store() const { return store_; }

 private:
  struct Parked {
    std::vector<PageKey> keys;
    std::int32_t first = 0;  // those from here on are here, and held
    std::span<const PageKey> here() const { return std::span(keys).subspan(first); }
  };

  RunningModel& model_;
  HostStore store_;
  std::map<RequestId, std::vector<PageKey>> kept_;
  std::map<RequestId, Parked> parked_;
};

}  // namespace mneme

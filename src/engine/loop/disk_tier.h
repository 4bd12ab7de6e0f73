// The disk under the host's memory: pages of sequences that may be asked for again, written between steps and fetched
// back when a prompt begins with them.
//
// Written   a sequence when its request has ended, a few pages between two steps; one that is evicted before, at once.
//           So what a crash loses is what was computed in the last moments.
// Fetched   as a cached sequence, a few pages between two steps: the disk works while others are computed. The request
//           that wants them is held meanwhile (PrefixWaits).
// Ranks     each has the pages of its heads in a folder of its own; rank 0 decides what is written, read and added, and
//           the others repeat it (disk_follower.h). A page counts where all of them have it.
// Content   exact keys and values (SequenceKeeper says whose); the index of a method is built again from the keys.
//
// Threads   the engine's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/engine/loop/disk_pages.h"
#include "src/engine/ranks/rank_link.h"

namespace mneme {

class DiskTier {
 public:
  // Errors  as PageStore.
  DiskTier(RunningModel& model, const DiskOptions& options);
  // Writes what waits for it.
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  // The computed pages of a kept sequence's first tokens are to be written.
  void keep(RequestId id, std::span<const TokenId> tokens, const std::string& salt);
  // The sequence is about to go: what waits is written now; or not at all, as another one has the same pages.
  void write_now(RequestId id);
  void forget(RequestId id);

  // Tokens that a sequence begins with and that are on the disk, in whole pages.
  std::int32_t find(std::span<const TokenId> tokens, const std::string& salt);
  struct Arrival {
    RequestId id;                 // a kept sequence, whose computed tokens grow until it is done
    std::vector<TokenId> tokens;  // all that it is to have
    std::string salt;
    bool done = false;  // as many as could be read are there
  };
  // Begins to fetch these tokens, of which `from` (if valid) has n_shared in memory; or finds who fetches them already.
  //
  // Requires  find() has just told so many.
  const Arrival& fetch(std::span<const TokenId> tokens, const std::string& salt, RequestId from, std::int32_t n_shared);
  // Arrivals that ended since the last call.
  std::vector<Arrival> take_arrived();
  bool fetches(RequestId id) const;

  // Moves transfers on. wait: there is nothing else to do, so at least one of them. `make_room` gives cached sequences
  // up until so many blocks are free, if it can.
  void work(bool wait, FunctionRef<void(std::int64_t blocks)> make_room);
  // Something is to be written or read.
  bool busy() const { return store_.in_flight() > 0 || !writes_.empty() || !loads_.empty(); }

  PageStore::Stats stats() const { return store_.stats(); }
  std::int64_t slot_bytes() const { return static_cast<std::int64_t>(store_.slot_bytes()); }
  void check_invariants() const { store_.check_invariants(); }

 private:
  struct Write {
    RequestId id;
    std::vector<PageKey> keys;
    std::int32_t next = 0;  // page
  };
  struct Load {
    Arrival arrival;
    std::vector<PageKey> keys;
    std::int32_t asked = 0, filled = 0, end = 0;  // pages: read next, added next, to be had
    std::int32_t in_flight = 0;
    // Asked for, and not yet added: a page of arriving_ each.
    struct Coming {
      std::int32_t place = 0;
      bool read = false;
    };
    std::map<std::int32_t, Coming> coming;
  };
  void tell(RankCall call, FunctionRef<void(ByteWriter&)> arguments) const;
  bool write_pages(Write& write);
  void write_some();
  void load_some();
  void take(std::uint64_t tag, std::span<const std::byte> bytes);
  std::vector<std::int32_t> next_pages(const Load& load) const;
  bool add_pages(std::uint64_t number, const Load& load, std::span<const std::int32_t> places);
  void fill(std::uint64_t number, Load& load, FunctionRef<void(std::int64_t)> make_room);
  void poll(bool wait);

  RunningModel& model_;
  RankLink* link_;  // null: one rank
  PageStore store_;
  PageStaging leaving_, arriving_;
  std::vector<std::int32_t> free_;  // pages of arriving_ that no load has
  std::deque<Write> writes_;
  std::map<std::uint64_t, Load> loads_;  // by number
  std::uint64_t next_load_ = 0;
  std::vector<Arrival> arrived_;
};

}  // namespace mneme

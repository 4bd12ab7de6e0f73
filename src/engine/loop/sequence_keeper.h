// Sequences that outlive their requests: for others with the same prefix, and in slots that clients name.
//
// What may be taken over  With full attention all that is computed. With a method only the prompt: an answer's keys
// come from steps that attended a part, and a request that computes the same tokens as its prompt would attend all.
// With EngineOptions::deterministic only the prompt, too: reading and answering round differently.
//
// Threads  the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/engine/loop/disk_tier.h"
#include "src/engine/loop/host_tier.h"
#include "src/engine/loop/prefix_cache.h"
#include "src/engine/session/running_model.h"
#include "src/engine/session/session_store.h"

namespace mneme {

struct KeeperOptions {
  bool prefix_cache = false;
  std::int32_t n_slots = 0;
  std::int64_t host_bytes = 0;                    // under the prefix cache, above the disk; 0: none
  std::optional<DiskOptions> disk;                // under the prefix cache
  std::function<void(const PageEvent&)> on_page;  // of the prefix cache, on the engine's thread; empty: no reports
};

class SequenceKeeper {
 public:
  // Requires  the model outlives the keeper; host_bytes is 0 where it has ranks. Errors  as HostTier and DiskTier.
  SequenceKeeper(RunningModel& model, const KeeperOptions& options);
  ~SequenceKeeper();
  SequenceKeeper(const SequenceKeeper&) = delete;
  SequenceKeeper& operator=(const SequenceKeeper&) = delete;

  // Whether a request's sequence has to be kept at its end.
  bool keeps(std::optional<std::int32_t> slot) const { return options_.prefix_cache || slot.has_value(); }

  // Whether requests may begin from others' prefixes.
  bool shares_prefixes() const { return options_.prefix_cache; }
  // Grows with every sequence that comes, changes or goes.
  std::uint64_t changes() const { return changes_; }

  // Of sequences with states (kv/recurrent_state.h) the end of a state that was kept, elsewhere whole pages; at most all
  // but the last token of the prompt.
  struct Source {
    RequestId id;
    std::int32_t n_tokens = 0;
    std::int32_t n_shared = 0;  // with states: whole pages that some sequence begins with alike
  };
  // What a request with this prompt may begin from; with states, n_tokens may be 0. Errors  kRequest: no such slot.
  std::optional<Source> source_for(std::span<const TokenId> prompt, const std::string& salt,
                                   std::optional<std::int32_t> slot);

  // Fetches what the host tier has of the prompt, where that is more than `have`, as a cached sequence; at most
  // `most` tokens. Returns whether any came.
  bool bring_back(std::span<const TokenId> prompt, const std::string& salt, const Source& have, std::int32_t most);
  // The same of what is on the disk, where that is more than `have` (n_tokens 0: nothing is in memory): a sequence that
  // arrives() until it has n_tokens, or as many as could be read. At most `most` tokens.
  std::optional<Source> fetch(std::span<const TokenId> prompt, const std::string& salt, const Source& have,
                              std::int32_t most);
  bool arrives(RequestId id) const { return disk_ && disk_->fetches(id); }
  // Between two steps. wait: nothing is computed until something arrives.
  void work(bool wait);
  bool has_work() const { return disk_ && disk_->busy(); }
  const HostTier* host() const { return host_ ? &*host_ : nullptr; }
  const DiskTier* disk() const { return disk_ ? &*disk_ : nullptr; }

  struct Request {
    RequestId id;
    std::int32_t prompt_tokens = 0;
    std::string salt;
    std::optional<std::int32_t> slot;
    bool full_attention = true;
  };
  // The prompt is computed; others may share it from now on.
  void prompt_done(const Request& request);
  // The request has ended with its sequence kept. Takes that over, or gives it up.
  void ended(const Request& request);

  // Evicts cached sequences, least recently used first, until the request that is to begin next has room.
  void make_room();
  std::int64_t cached() const { return prefixes_.size(); }

  struct Slot {
    RequestId id;  // not valid: empty
    std::int32_t n_tokens = 0, n_shared = 0;
    std::string salt;
  };
  const std::vector<Slot>& slots() const { return slots_; }
  // Errors (also below)  kRequest: no such slot.
  Slot& slot(std::int32_t s);
  // Evicts what the slot has for a sequence from elsewhere.
  void put(std::int32_t slot, const RestoredSequence& restored);
  // Tokens evicted.
  std::int64_t erase(std::int32_t slot);
  RunningModel& model() { return model_; }

 private:
  std::int32_t shareable(const Request& request) const;
  enum class Pages { kKept, kElsewhere };  // in lower tiers, where there are any; another sequence has them
  void make_room_for(std::int64_t blocks);
  void evict(RequestId id, Pages pages = Pages::kKept);
  void keep_below(RequestId id, std::span<const TokenId> tokens, const std::string& salt);
  void take_in(RequestId id, std::vector<TokenId> tokens, const std::string& salt);
  void fill(Slot& slot, Slot with);

  RunningModel& model_;
  KeeperOptions options_;
  PrefixCache prefixes_;
  std::optional<HostTier> host_;
  std::optional<DiskTier> disk_;
  std::vector<Slot> slots_;
  std::uint64_t changes_ = 0;
};

}  // namespace mneme

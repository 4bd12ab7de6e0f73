// Which sequences of the engine begin as a new prompt does: a map of hashes of page chains, with the least recently used
// sequence to evict when memory is wanted.
//
// A node is a page of tokens after the pages before it; it is found by the hash of all of these, and what it names is
// compared token by token, so that equal hashes of different texts do no harm. It knows ids and tokens; keys and values
// are the engine's, which shares their pages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/function_ref.h"
#include "src/engine/schedule/scheduler.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

// A page of tokens that sequences without a salt begin with: cached from now on, or no longer.
struct PageEvent {
  bool stored = false;
  std::uint64_t hash = 0;               // of the page and all before it
  std::optional<std::uint64_t> parent;  // hash of the page before it
  std::span<const TokenId> tokens;      // of the page, where it is stored; during the call
};

// By whole page: hash of it, of all before it, and of the salt.
std::vector<std::uint64_t> page_chain(std::span<const TokenId> tokens, const std::string& salt);

class PrefixCache {
 public:
  // Calls `report` whenever a page gets its first sequence, and loses its last; empty: no reports.
  void report_pages(std::function<void(const PageEvent&)> report) { report_ = std::move(report); }

  // Tokens [0, n_shared) of the sequence may be taken over by others with the same salt.
  struct Sequence {
    RequestId id;
    std::vector<TokenId> tokens;
    std::int32_t n_shared = 0;
    std::string salt;
    bool running = false;  // not to be evicted
  };
  // Takes a sequence in, or takes it in again.
  void put(Sequence sequence);
  void erase(RequestId id);
  bool contains(RequestId id) const { return entries_.contains(id); }

  struct Match {
    RequestId id;
    std::int32_t n_tokens = 0;  // whole pages
  };
  // The sequence that shares most with `tokens`, and is used with that. Ties: the one used last.
  std::optional<Match> find(std::span<const TokenId> tokens, const std::string& salt);
  // The same among sequences that `may` accepts.
  std::optional<Match> find(std::span<const TokenId> tokens, const std::string& salt, FunctionRef<bool(RequestId)> may);

  // Where a sequence is not of use for all that it shares: usable(id, n) of n tokens that it shares with `tokens`.
  struct UsableMatch {
    RequestId id;               // of the most use; invalid: none is of any
    std::int32_t n_tokens = 0;  // that it is of use for
    std::int32_t n_shared = 0;  // the most that any shares, in whole pages
  };
  UsableMatch find_usable(std::span<const TokenId> tokens, const std::string& salt,
                          FunctionRef<std::int32_t(RequestId, std::int32_t n)> usable);

  // Tokens of whole pages that two sequences of one salt begin with alike; 0: one of them is not here.
  std::int32_t common_tokens(RequestId a, RequestId b) const;

  // The least recently used sequence that is not running.
  std::optional<RequestId> least_recently_used() const;
  // Sequences that do not run and whose shared pages `id` has all: no other request needs them.
  std::vector<RequestId> superseded_by(RequestId id) const;

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Sequence sequence;
    std::vector<std::uint64_t> chain;  // by page: hash of it and of all before it
    std::uint64_t used = 0;
  };
  void link(const Entry& entry);
  void unlink(const Entry& entry);

  std::unordered_map<RequestId, Entry> entries_;
  std::unordered_map<std::uint64_t, std::vector<RequestId>> nodes_;  // by chain hash: who has this page
  std::uint64_t clock_ = 0;
  std::function<void(const PageEvent&)> report_;
};

}  // namespace mneme

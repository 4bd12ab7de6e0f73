#include "src/engine/loop/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/kv/page_pool.h"

namespace mneme {

std::vector<std::uint64_t> page_chain(std::span<const TokenId> tokens, const std::string& salt) {
  std::vector<std::uint64_t> chain;
  std::uint64_t hash = XXH3_64bits(salt.data(), salt.size());
  constexpr std::size_t kPage = kPageTokens;
  for (std::size_t at = 0; at + kPage <= tokens.size(); at += kPage) {
    hash = XXH3_64bits_withSeed(tokens.data() + at, kPage * sizeof(TokenId), hash);
    chain.push_back(hash);
  }
  return chain;
}

void PrefixCache::link(const Entry& entry) {
  std::optional<std::uint64_t> parent;
  for (std::size_t page = 0; page < entry.chain.size(); ++page) {
    const std::uint64_t hash = entry.chain[page];
    std::vector<RequestId>& node = nodes_[hash];
    node.push_back(entry.sequence.id);
    if (node.size() == 1 && report_ && entry.sequence.salt.empty()) {
      constexpr std::size_t kPage = kPageTokens;
      report_({.stored = true,
               .hash = hash,
               .parent = parent,
               .tokens = std::span<const TokenId>(entry.sequence.tokens).subspan(page * kPage, kPage)});
    }
    parent = hash;
  }
}

void PrefixCache::unlink(const Entry& entry) {
  // From the last page on, so that no page is reported after its parent is gone.
  for (auto hash = entry.chain.rbegin(); hash != entry.chain.rend(); ++hash) {
    const auto node = nodes_.find(*hash);
    if (node == nodes_.end()) continue;
    // One of them: a sequence that is put in again is linked before its old pages are not.
    const auto it = std::find(node->second.begin(), node->second.end(), entry.sequence.id);
    if (it != node->second.end()) node->second.erase(it);
    if (!node->second.empty()) continue;
    nodes_.erase(node);
    if (report_ && entry.sequence.salt.empty()) report_({.stored = false, .hash = *hash, .parent = {}, .tokens = {}});
  }
}

void PrefixCache::put(Sequence sequence) {
  MNEME_CHECK(sequence.n_shared >= 0 && sequence.n_shared <= std::ssize(sequence.tokens), "{} of {} tokens",
              sequence.n_shared, sequence.tokens.size());
  const RequestId id = sequence.id;
  const auto before = entries_.extract(id);
  const auto shared = std::span<const TokenId>(sequence.tokens).first(sequence.n_shared);
  std::vector<std::uint64_t> chain = page_chain(shared, sequence.salt);
  const Entry& entry =
      entries_.emplace(id, Entry{.sequence = std::move(sequence), .chain = std::move(chain), .used = ++clock_})
          .first->second;
  link(entry);
  if (before) unlink(before.mapped());
}

void PrefixCache::erase(RequestId id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  unlink(it->second);
  entries_.erase(it);
}

std::optional<PrefixCache::Match> PrefixCache::find(std::span<const TokenId> tokens, const std::string& salt) {
  return find(tokens, salt, [](RequestId) { return true; });
}

std::optional<PrefixCache::Match> PrefixCache::find(std::span<const TokenId> tokens, const std::string& salt,
                                                    FunctionRef<bool(RequestId)> may) {
  const std::vector<std::uint64_t> chain = page_chain(tokens, salt);
  for (std::size_t pages = chain.size(); pages > 0; --pages) {
    const auto node = nodes_.find(chain[pages - 1]);
    if (node == nodes_.end()) continue;
    const std::size_t n = pages * kPageTokens;
    std::vector<Entry*> candidates;
    for (const RequestId id : node->second) {
      Entry& entry = entries_.at(id);
      if (entry.sequence.salt == salt && entry.sequence.tokens.size() >= n && may(id)) candidates.push_back(&entry);
    }
    std::sort(candidates.begin(), candidates.end(), [](const Entry* a, const Entry* b) { return a->used > b->used; });
    // The first one almost always, as hashes differ: a thousand questions about a long text are not compared in full.
    for (Entry* const entry : candidates) {
      if (!std::equal(tokens.begin(), tokens.begin() + n, entry->sequence.tokens.begin())) continue;
      entry->used = ++clock_;
      return Match{.id = entry->sequence.id, .n_tokens = count32(n)};
    }
  }
  return std::nullopt;
}

PrefixCache::UsableMatch PrefixCache::find_usable(std::span<const TokenId> tokens, const std::string& salt,
                                                  FunctionRef<std::int32_t(RequestId, std::int32_t n)> usable) {
  const std::vector<std::uint64_t> chain = page_chain(tokens, salt);
  UsableMatch best;
  Entry* used = nullptr;
  std::unordered_set<RequestId> seen;
  for (std::size_t pages = chain.size(); pages > 0; --pages) {
    const std::size_t n = pages * kPageTokens;
    // Those that were not seen yet share less than a page more than n.
    if (best.n_tokens >= count32(n + kPageTokens)) break;
    const auto node = nodes_.find(chain[pages - 1]);
    if (node == nodes_.end()) continue;
    for (const RequestId id : node->second) {
      Entry& entry = entries_.at(id);
      const auto& theirs = entry.sequence.tokens;
      if (entry.sequence.salt != salt || theirs.size() < n || !seen.insert(id).second) continue;
      if (!std::equal(tokens.begin(), tokens.begin() + n, theirs.begin())) continue;
      const auto end =
          std::mismatch(tokens.begin() + n, tokens.end(), theirs.begin() + n, theirs.begin() + entry.sequence.n_shared);
      best.n_shared = std::max(best.n_shared, count32(n));
      const std::int32_t of_use = usable(id, count32(end.first - tokens.begin()));
      const bool later = used != nullptr && of_use == best.n_tokens && entry.used > used->used;
      if (of_use <= best.n_tokens && !later) continue;
      best.id = id;
      best.n_tokens = of_use;
      used = &entry;
    }
  }
  if (used != nullptr) used->used = ++clock_;
  return best;
}

std::int32_t PrefixCache::common_tokens(RequestId a, RequestId b) const {
  const auto x = entries_.find(a), y = entries_.find(b);
  if (x == entries_.end() || y == entries_.end() || x->second.sequence.salt != y->second.sequence.salt) return 0;
  const std::vector<std::uint64_t>& chain = x->second.chain;
  const auto end = std::mismatch(chain.begin(), chain.end(), y->second.chain.begin(), y->second.chain.end()).first;
  const std::ptrdiff_t n = (end - chain.begin()) * kPageTokens;
  const auto& tokens = x->second.sequence.tokens;
  const bool same = std::equal(tokens.begin(), tokens.begin() + n, y->second.sequence.tokens.begin());
  return same ? count32(n) : 0;
}

std::optional<RequestId> PrefixCache::least_recently_used() const {
  const Entry* oldest = nullptr;
  for (const auto& [id, entry] : entries_)
    if (!entry.sequence.running && (oldest == nullptr || entry.used < oldest->used)) oldest = &entry;
  if (oldest == nullptr) return std::nullopt;
  return oldest->sequence.id;
}

std::vector<RequestId> PrefixCache::superseded_by(RequestId id) const {
  std::vector<RequestId> out;
  const auto it = entries_.find(id);
  if (it == entries_.end()) return out;
  const Sequence& longer = it->second.sequence;
  for (const std::uint64_t hash : it->second.chain) {
    for (const RequestId other : nodes_.at(hash)) {
      const Entry& entry = entries_.at(other);
      const Sequence& s = entry.sequence;
      if (other == id || s.running || s.salt != longer.salt || entry.chain.back() != hash) continue;
      const std::size_t n = entry.chain.size() * kPageTokens;
      if (std::equal(s.tokens.begin(), s.tokens.begin() + n, longer.tokens.begin())) out.push_back(other);
    }
  }
  return out;
}

}  // namespace mneme

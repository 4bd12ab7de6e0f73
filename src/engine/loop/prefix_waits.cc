#include "src/engine/loop/prefix_waits.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "src/base/size32.h"

namespace mneme {
namespace {

bool binds(const GenerationInput& input) {
  return input.method != nullptr && input.method->binds_sequence();
}

// A method that drops tokens at the end of its prefill leaves nothing to share; a prompt that is scored is computed in
// chunks so small that those who wait for it would lose more than they gain.
bool leads(const GenerationInput& input) {
  return !input.score_prompt && !binds(input) && (input.method == nullptr || !input.method->drops());
}

// Tokens of the prompt that may be another request's: whole pages, without the last token, whose logits are wanted, and
// without the rows that the method observes at the end of its prefill.
std::int32_t most_shared(const GenerationInput& input) {
  if (input.score_prompt || binds(input)) return 0;
  const std::int64_t n = input.prompt.size();
  const std::int64_t own = std::max<std::int64_t>(1, input.method == nullptr ? 0 : input.method->observed_rows);
  return count32(std::max<std::int64_t>(0, n - own) / kPageTokens * kPageTokens);
}

bool waits_to_begin(const Engine& engine, RequestId id) {
  return engine.view(id).phase == RequestPhase::kWaiting;
}

}  // namespace

void PrefixWaits::add(RequestId id, const GenerationInput& input) {
  const bool shares = keeper_.shares_prefixes();
  Prompt prompt{.input = &input, .leads = shares && leads(input), .most = most_shared(input), .leader = {}};
  if (prompt.most == 0 && !prompt.leads) return;
  ranks_.emplace(id, rank_of(id, input));
  prompts_.emplace(rank_of(id, input), prompt);
  if (shares) {
    tree_.put({.id = id,
               .tokens = input.prompt,
               .n_shared = size32(input.prompt),
               .salt = input.cache_salt,
               .running = true});
  }
  ++changes_;
}

void PrefixWaits::forget(RequestId id) {
  ++changes_;  // its memory, too
  const auto rank = ranks_.find(id);
  if (rank == ranks_.end()) return;
  prompts_.erase(rank->second);
  ranks_.erase(rank);
  tree_.erase(id);
}

std::int32_t PrefixWaits::computed(RequestId id) const {
  return model_.engine->cache(id).length();
}

bool PrefixWaits::still_waits(const Prompt& prompt, bool runs) const {
  if (!prompt.leader) return false;
  if (keeper_.arrives(prompt.leader->id)) return true;
  if (!ranks_.contains(prompt.leader->id)) return false;
  if (runs && waits_to_begin(*model_.engine, prompt.leader->id)) return false;  // preempted
  return computed(prompt.leader->id) < prompt.leader->n_tokens;
}

// Another number whenever plan() may find something else than before.
std::uint64_t PrefixWaits::look_around() {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  std::uint64_t n = changes_ * kPrime + keeper_.changes();
  readers_.clear();
  for (const auto& [rank, prompt] : prompts_) {
    const std::int32_t length = computed(rank.second);
    n = n * kPrime + length;
    if (length >= kPageTokens && prompt.leads) readers_.push_back(rank.second);
  }
  return n;
}

// What anybody has computed of the prompt, if it is more than `own`.
PrefixWaits::Source PrefixWaits::best_source(RequestId id, const Prompt& prompt, std::int32_t own) {
  const GenerationInput& input = *prompt.input;
  Source best{.id = {}, .n_tokens = own};
  const auto offer = [&](RequestId from, std::int32_t n) {
    n = std::min(n, prompt.most);
    if (n > best.n_tokens) best.id = from, best.n_tokens = n;
  };
  if (const auto kept = keeper_.source_for(input.prompt, input.cache_salt, input.slot)) {
    best.n_shared = std::min(kept->n_shared, prompt.most);
    offer(kept->id, kept->n_tokens);
  }
  for (const RequestId other : readers_) {
    std::int32_t n = other == id ? 0 : computed(other) / kPageTokens * kPageTokens;
    if (n <= best.n_tokens) continue;
    n = std::min(n, tree_.common_tokens(id, other));
    offer(other, model_.engine->cache(other).longest_cut(n));
  }
  return best;
}

// Who goes before it and computes most of its prompt beyond `own`.
std::optional<PrefixWaits::Source> PrefixWaits::leader_of(const Rank& rank, const Prompt& prompt, std::int32_t own,
                                                          bool runs) {
  const GenerationInput& input = *prompt.input;
  const auto may_lead = [&](RequestId other) {
    const Rank& its = ranks_.at(other);
    const Prompt& leader = prompts_.at(its);
    // One that waits for its group may wait long, though it goes first.
    const bool must_run = runs || (leader.input->group_limit > 0 && leader.input->group != input.group);
    return its < rank && leader.leads && !(must_run && waits_to_begin(*model_.engine, other));
  };
  const auto match = tree_.find(input.prompt, input.cache_salt, may_lead);
  if (!match) return std::nullopt;
  Source leader{.id = match->id, .n_tokens = std::min(match->n_tokens, prompt.most)};
  const bool has_states = model_.engine->pool().shape().state_bytes > 0;
  if (has_states) leader.n_tokens = leader.n_tokens / kStateRows * kStateRows;
  if (leader.n_tokens <= own) return std::nullopt;
  // One that is past the place has no state of it to share.
  if (has_states && !model_.engine->keep_state_at(leader.id, leader.n_tokens)) return std::nullopt;
  return leader;
}

// Returns the tokens that it took over, if it runs.
std::int64_t PrefixWaits::look_at(const Rank& rank, Prompt& prompt, Room& room) {
  Engine& engine = *model_.engine;
  const RequestId id = rank.second;
  const RequestView view = engine.view(id);
  const bool runs = view.phase != RequestPhase::kWaiting;
  const std::int32_t own = computed(id);
  Source source = best_source(id, prompt, own);
  prompt.leader = leader_of(rank, prompt, source.n_tokens, runs);
  if (!prompt.leader && !runs && !std::exchange(prompt.fetched, true)) {
    const GenerationInput& input = *prompt.input;
    if (keeper_.bring_back(input.prompt, input.cache_salt, source, prompt.most)) source = best_source(id, prompt, own);
    prompt.leader = keeper_.fetch(input.prompt, input.cache_salt, source, prompt.most);
  }
  if (prompt.leader) {
    engine.hold(id);
    return 0;
  }
  const std::int64_t shared = (source.n_tokens - own) / kPageTokens * engine.pool().shape().blocks_per_page();
  const std::int64_t needed = view.blocks_to_end - shared;
  if (!runs && !std::exchange(room.first, false) && shared > 0 && needed > room.blocks) {
    engine.hold(id);  // do not pin pages for a request that cannot start
    return 0;
  }
  if (!runs) room.blocks -= needed;
  engine.unhold(id);
  // The next prompt that begins with what others share finds a state there.
  if (source.n_shared > source.n_tokens) engine.keep_state_at(id, source.n_shared);
  if (shared <= 0) return 0;
  const std::int32_t has = engine.take_prefix(id, source.id, source.n_tokens);
  return runs ? has - own : 0;
}

std::int64_t PrefixWaits::plan() {
  if (const std::uint64_t now = look_around(); now == std::exchange(seen_, now)) return 0;
  const Engine& engine = *model_.engine;
  std::unordered_set<RequestId> blocked;
  for (const RequestView& v : engine.views())
    if (v.blocked) blocked.insert(v.id);
  Room room{.requests = engine.options().max_sequences,
            .blocks = engine.pool().n_free() - engine.reserved_blocks(),
            .first = true};
  std::int64_t taken = 0;
  waiting_ = 0;
  for (auto& [rank, prompt] : prompts_) {
    const bool runs = !waits_to_begin(engine, rank.second);
    if (!still_waits(prompt, runs)) {
      // A step starts no more than these, and none of a group that is full.
      if (!runs && (room.requests <= 0 || blocked.contains(rank.second))) continue;
      if (!runs || computed(rank.second) < prompt.most || prompt.leader) taken += look_at(rank, prompt, room);
    }
    prompt.leader ? ++waiting_ : --room.requests;
  }
  return taken;
}

}  // namespace mneme

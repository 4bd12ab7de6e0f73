#include "src/engine/loop/sequence_keeper.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

std::int32_t whole_pages(std::int64_t n_tokens) {
  return count32(n_tokens / kPageTokens * kPageTokens);
}

}  // namespace

SequenceKeeper::SequenceKeeper(RunningModel& model, const KeeperOptions& options)
    : model_(model), options_(options), slots_(options.n_slots) {
  if (model_.engine->pool().shape().state_bytes > 0 && (options_.disk || options_.host_bytes > 0))
    fail(
        ErrorKind::kUnsupported,
        "{}: this model's linear attention has states, which are not kept there, and cannot go on from keys and values "
        "alone: leave the option out; prefixes stay in the memory of --kv-memory",
        options_.disk ? "--kv-disk" : "--kv-host-gib");
  prefixes_.report_pages(options_.on_page);
  if (options_.prefix_cache && options_.disk) disk_.emplace(model_, *options_.disk);
  if (!options_.prefix_cache || options_.host_bytes == 0) return;
  host_.emplace(model_, options_.host_bytes);
  model_.engine->set_lower_tier(&*host_);
}

SequenceKeeper::~SequenceKeeper() {
  if (host_) model_.engine->set_lower_tier(nullptr);
}

SequenceKeeper::Slot& SequenceKeeper::slot(std::int32_t s) {
  if (s < 0 || s >= options_.n_slots) {
    fail(ErrorKind::kRequest, "there is no slot {}: expected 0 to {}", s, options_.n_slots - 1);
  }
  return slots_[s];
}

std::optional<SequenceKeeper::Source> SequenceKeeper::source_for(std::span<const TokenId> prompt,
                                                                 const std::string& salt,
                                                                 std::optional<std::int32_t> slot_id) {
  if (prompt.empty()) return std::nullopt;
  const std::int64_t most = std::ssize(prompt) - 1;
  const bool has_states = model_.engine->pool().shape().state_bytes > 0;
  Source best;
  const auto usable = [&](RequestId id, std::int64_t n_shared) {
    const SequenceCache& cache = model_.engine->cache(id);
    const std::int64_t n = std::min({n_shared, most, std::int64_t{cache.length()}});
    return has_states ? cache.longest_cut(count32(n)) : whole_pages(n);
  };
  const auto offer = [&](RequestId id, std::int64_t n_shared) {
    const std::int32_t n = usable(id, n_shared);
    best.n_shared = std::max(best.n_shared, has_states ? whole_pages(std::min(n_shared, most)) : 0);
    if (n > best.n_tokens) best.id = id, best.n_tokens = n;
  };
  if (slot_id) {
    const Slot& s = slot(*slot_id);
    if (s.id.valid() && s.salt == salt) {
      const auto tokens = model_.engine->tokens(s.id);
      const auto first_other = std::mismatch(prompt.begin(), prompt.end(), tokens.begin(), tokens.end()).first;
      offer(s.id, std::min<std::int64_t>(first_other - prompt.begin(), s.n_shared));
    }
  }
  if (options_.prefix_cache && has_states) {
    const auto match = prefixes_.find_usable(prompt, salt, usable);
    best.n_shared = std::max(best.n_shared, whole_pages(std::min<std::int64_t>(match.n_shared, most)));
    if (match.id.valid()) offer(match.id, match.n_tokens);
  } else if (options_.prefix_cache) {
    if (const auto match = prefixes_.find(prompt, salt)) offer(match->id, match->n_tokens);
  }
  if (best.n_tokens == 0 && best.n_shared == 0) return std::nullopt;
  return best;
}

std::int32_t SequenceKeeper::shareable(const Request& request) const {
  const std::int32_t computed = model_.engine->cache(request.id).length();
  const bool answer_too = request.full_attention && !model_.engine->options().deterministic;
  return answer_too ? computed : std::min(computed, request.prompt_tokens);
}

void SequenceKeeper::prompt_done(const Request& request) {
  if (!options_.prefix_cache) return;
  ++changes_;
  const auto tokens = model_.engine->tokens(request.id).first(request.prompt_tokens);
  prefixes_.put({.id = request.id,
                 .tokens = {tokens.begin(), tokens.end()},
                 .n_shared = std::min(shareable(request), request.prompt_tokens),
                 .salt = request.salt,
                 .running = true});
}

void SequenceKeeper::evict(RequestId id, Pages pages) {
  ++changes_;
  if (host_) pages == Pages::kKept ? host_->write_now(id) : host_->drop(id);
  if (disk_) pages == Pages::kKept ? disk_->write_now(id) : disk_->forget(id);
  prefixes_.erase(id);
  model_.engine->cancel(id);
}

void SequenceKeeper::fill(Slot& slot, Slot with) {
  ++changes_;
  const RequestId before = std::exchange(slot, std::move(with)).id;
  if (before.valid()) evict(before);
}

void SequenceKeeper::ended(const Request& request) {
  ++changes_;
  const std::int32_t n_shared = shareable(request);
  const auto tokens = model_.engine->tokens(request.id);
  if (!keeps(request.slot) || (n_shared < kPageTokens && !request.slot)) return evict(request.id);
  if (options_.prefix_cache) {
    prefixes_.put({.id = request.id,
                   .tokens = {tokens.begin(), tokens.end()},
                   .n_shared = n_shared,
                   .salt = request.salt,
                   .running = request.slot.has_value()});
    keep_below(request.id, tokens.first(n_shared), request.salt);
    for (const RequestId id : prefixes_.superseded_by(request.id)) evict(id, Pages::kElsewhere);
  }
  if (!request.slot) return;
  fill(slot(*request.slot), {.id = request.id, .n_tokens = size32(tokens), .n_shared = n_shared, .salt = request.salt});
}

void SequenceKeeper::keep_below(RequestId id, std::span<const TokenId> tokens, const std::string& salt) {
  if (host_) host_->keep(id, tokens, salt);
  if (disk_) disk_->keep(id, tokens, salt);
}

bool SequenceKeeper::bring_back(std::span<const TokenId> prompt, const std::string& salt, const Source& have,
                                std::int32_t most) {
  if (!host_ || have.n_tokens >= most) return false;
  const std::int32_t n = std::min(host_->find(prompt, salt), most);
  if (n <= have.n_tokens) return false;
  const auto tokens = prompt.first(n);
  const RequestId id =
      host_->fetch(tokens, salt, have.id, have.n_tokens, [this](std::int64_t blocks) { make_room_for(blocks); });
  take_in(id, {tokens.begin(), tokens.end()}, salt);
  return prefixes_.contains(id);
}

std::optional<SequenceKeeper::Source> SequenceKeeper::fetch(std::span<const TokenId> prompt, const std::string& salt,
                                                            const Source& have, std::int32_t most) {
  if (!disk_ || have.n_tokens >= most) return std::nullopt;
  const std::int32_t n = std::min(disk_->find(prompt, salt), most);
  if (n <= have.n_tokens) return std::nullopt;
  const DiskTier::Arrival& arrival = disk_->fetch(prompt.first(n), salt, have.id, have.n_tokens);
  return Source{.id = arrival.id, .n_tokens = n};
}

// What a lower tier had is a cached sequence as any other.
void SequenceKeeper::take_in(RequestId id, std::vector<TokenId> tokens, const std::string& salt) {
  ++changes_;
  const std::int32_t n = model_.engine->cache(id).length();
  if (n == 0) return model_.engine->cancel(id);
  if (host_) host_->keep(id, std::span(tokens).first(n), salt);
  prefixes_.put({.id = id, .tokens = std::move(tokens), .n_shared = n, .salt = salt, .running = false});
  for (const RequestId shorter : prefixes_.superseded_by(id)) evict(shorter, Pages::kElsewhere);
}

void SequenceKeeper::work(bool wait) {
  if (!disk_ || !disk_->busy()) return;
  disk_->work(wait, [this](std::int64_t blocks) { make_room_for(blocks); });
  for (DiskTier::Arrival& arrival : disk_->take_arrived()) take_in(arrival.id, std::move(arrival.tokens), arrival.salt);
}

void SequenceKeeper::make_room() {
  const std::vector<RequestView> views = model_.engine->views();
  const RequestView* first = nullptr;
  for (const RequestView& v : views) {
    if (v.phase == RequestPhase::kWaiting && !v.blocked && (first == nullptr || v.priority > first->priority))
      first = &v;
  }
  if (first == nullptr) return;
  make_room_for(first->blocks_to_end);
}

void SequenceKeeper::make_room_for(std::int64_t blocks) {
  const Engine& engine = *model_.engine;
  while (blocks > engine.pool().n_free() - engine.reserved_blocks()) {
    const auto oldest = prefixes_.least_recently_used();
    if (!oldest) return;
    evict(*oldest);
  }
}

void SequenceKeeper::put(std::int32_t s, const RestoredSequence& restored) {
  const auto n = size32(restored.content.tokens);
  if (options_.prefix_cache) {
    prefixes_.put({.id = restored.id,
                   .tokens = restored.content.tokens,
                   .n_shared = restored.content.n_computed,
                   .salt = {},
                   .running = true});
    keep_below(restored.id, std::span(restored.content.tokens).first(restored.content.n_computed), {});
  }
  fill(slot(s), {.id = restored.id, .n_tokens = n, .n_shared = restored.content.n_computed, .salt = {}});
}

std::int64_t SequenceKeeper::erase(std::int32_t s) {
  Slot& at = slot(s);
  const std::int32_t n = at.n_tokens;
  fill(at, {});
  return n;
}

}  // namespace mneme

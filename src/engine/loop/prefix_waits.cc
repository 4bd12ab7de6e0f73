#include "src/engine/loop/prefix_waits.h"

#include <algorithm>

#include "src/base/size32.h"

namespace mneme {
namespace {

// A method that drops tokens at the end of its prefill leaves nothing to share; a prompt that is scored is computed in
// chunks so small that those who wait for it would lose more than they gain.
bool leads(const GenerationInput& input) {
  if (input.score_prompt) return false;
  return input.method == nullptr || (!input.method->binds_sequence() && !input.method->drops());
}

// Tokens of the prompt that may be another request's: whole pages, without the last token, whose logits are wanted, and
// without the rows that the method observes at the end of its prefill.
std::int32_t most_shared(const GenerationInput& input) {
  if (input.score_prompt || (input.method != nullptr && input.method->binds_sequence())) return 0;
  const std::int64_t n = input.prompt.size();
  const std::int64_t own = std::max<std::int64_t>(1, input.method == nullptr ? 0 : input.method->observed_rows());
  return count32(std::max<std::int64_t>(0, n - own) / kPageTokens * kPageTokens);
}

}  // namespace

std::optional<PrefixWaits::Source> PrefixWaits::leader_before(const GenerationInput& input,
                                                              const std::optional<Source>& source,
                                                              std::optional<RequestId> before) {
  const auto may_lead = [&](RequestId id) {
    return (!before || id < *before) && pending_.at(id)->priority >= input.priority;
  };
  const std::int32_t most = most_shared(input);
  if (most == 0 || pending_.empty()) return std::nullopt;
  const auto match = prompts_.find(input.prompt, input.cache_salt, may_lead);
  if (!match) return std::nullopt;
  const Source leader{.id = match->id, .n_tokens = std::min(match->n_tokens, most)};
  return leader.n_tokens > (source ? source->n_tokens : 0) ? std::optional(leader) : std::nullopt;
}

std::optional<PrefixWaits::Source> PrefixWaits::leader_for(const GenerationInput& input,
                                                           const std::optional<Source>& source) {
  return leader_before(input, source, std::nullopt);
}

void PrefixWaits::add(RequestId id, const GenerationInput& input, const std::optional<Source>& leader) {
  if (leader) {
    model_.engine->hold(id);
    held_.emplace(id, Prompt{.input = &input, .leader = leader});
  }
  if (!keeper_.shares_prefixes() || !leads(input)) return;
  pending_.emplace(id, &input);
  prompts_.put(
      {.id = id, .tokens = input.prompt, .n_shared = size32(input.prompt), .salt = input.cache_salt, .running = true});
}

void PrefixWaits::forget(RequestId id) {
  held_.erase(id);
  pending_.erase(id);
  prompts_.erase(id);
}

bool PrefixWaits::computed(const Source& leader) const {
  return model_.engine->cache(leader.id).length() >= leader.n_tokens;
}

std::vector<PrefixWaits::Released> PrefixWaits::release() {
  std::vector<Released> released;
  for (auto it = held_.begin(); it != held_.end();) {
    auto& [id, prompt] = *it;
    const GenerationInput& input = *prompt.input;
    const bool leader_runs = pending_.contains(prompt.leader->id);
    if (leader_runs && !computed(*prompt.leader)) {
      ++it;
      continue;
    }
    auto source = keeper_.source_for(input.prompt, input.cache_salt, input.slot);
    if (leader_runs && (!source || source->n_tokens < prompt.leader->n_tokens)) source = prompt.leader;
    if (!source || source->n_tokens < prompt.leader->n_tokens) {
      // The leader was cancelled, or has failed: the next one that waited for it computes the prompt.
      if (const auto next = leader_before(input, source, id)) {
        prompt.leader = next;
        continue;  // looked at once more: it may have computed the part already
      }
    }
    const std::int32_t n = source ? source->n_tokens : 0;
    model_.engine->start_held(id, source ? source->id : RequestId(), n);
    released.push_back({.id = id, .n_tokens = n});
    it = held_.erase(it);
  }
  return released;
}

}  // namespace mneme

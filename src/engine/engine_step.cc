// The parts of a step: what runs, the rows of its batch, tokens from its logits, and what they mean for each request.
#include <algorithm>
#include <numeric>
#include <utility>

#include "src/base/check.h"
#include "src/engine/engine_impl.h"

namespace mneme {

// Prompt tokens whose logits fit into 64 MiB.
std::int32_t Engine::Impl::scored_rows() const {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  return static_cast<std::int32_t>(std::max<std::int64_t>(kBytes / (forward->vocab() * 4), 1));
}

RequestView Engine::Impl::view(const Request& r) const {
  RequestView view = r.view(scored_rows(), expected_blocks(r));
  view.window = std::lcm(view.window, forward->prompt_alignment());
  view.first_window = view.window - r.cache.length() % view.window;
  return view;
}

void Engine::Impl::align_prompts() {
  const std::int32_t each = forward->prompt_alignment();
  for (Request* r : active)
    if (r->scheduled() && !r->parked && r->cache.length() < r->decode_from())
      r->truncate(r->cache.length() / each * each);
}

std::vector<RequestView> Engine::Impl::views() const {
  std::vector<RequestView> views;
  for (const Request* r : active)
    if (r->scheduled()) views.push_back(view(*r));
  const GroupCounts groups(views);
  for (RequestView& v : views) v.blocked = v.phase == RequestPhase::kWaiting && groups.full(v);
  return views;
}

bool Engine::Impl::all_held() const {
  return std::all_of(active.begin(), active.end(), [](const Request* r) { return r->held; });
}

std::vector<ScheduledTokens> Engine::Impl::plan() {
  const bool apart = forward->prompt_alignment() > 1;
  if (apart) align_prompts();
  std::vector<RequestView> all = views();
  std::int64_t free_blocks = pool->n_free();
  std::int32_t prompt_tokens = chunk.tokens();
  agree_on_step(all, free_blocks, prompt_tokens);
  return schedule({.requests = all, .free_blocks = free_blocks}, {.max_sequences = options.max_sequences,
                                                                  .max_batched_tokens = options.max_batched_tokens,
                                                                  .max_prompt_tokens = prompt_tokens,
                                                                  .apart = apart,
                                                                  .prompt_next = prompt_next});
}

// Where requests begin by forecast, a step may find too little memory: sequences that do not run give pages up, then
// the least urgent that do. Whoever goes first always keeps its own, so every step computes something.
std::vector<ScheduledTokens> Engine::Impl::plan_with_room() {
  std::vector<ScheduledTokens> rows = plan();
  if (rows.empty()) {
    make_room();
    rows = plan();
  }
  if (bring_back(rows)) rows = plan();
  leave_parked_out(rows);
  while (forecasts() && !fits(rows)) {
    if (!take_pages(nullptr, [&] { return fits(rows); }) && !forget_copies())
      MNEME_CHECK(preempt(), "{} rows do not fit into {} free blocks of {}", rows.size(), pool->n_free(),
                  pool->n_blocks());
    rows = plan();
    leave_parked_out(rows);
  }
  bool any_parked = false;
  for (const ScheduledTokens& r : rows) {
    any_parked = any_parked || requests.at(r.id)->parked;
    unpark(*requests.at(r.id), lower);
  }
  if (!any_parked || forward->prompt_alignment() == 1) return rows;
  rows = plan();  // a prompt that goes on without its pages begins at a multiple
  leave_parked_out(rows);
  return rows;
}

// Those of a plan that were preempted, and may go on, get their pages back where there is room for them beside what the
// others need. Returns whether any did: it runs, and has other tokens to compute.
bool Engine::Impl::bring_back(const std::vector<ScheduledTokens>& plan) {
  std::int64_t room = pool->n_free();
  for (const ScheduledTokens& rows : plan)
    if (const Request& r = *requests.at(rows.id); !r.parked) room -= r.cache.blocks_needed(rows.n_tokens);
  bool any = false;
  for (const ScheduledTokens& rows : plan) {
    Request& r = *requests.at(rows.id);
    if (!r.parked) continue;
    const std::int64_t needed = r.cache.blocks_needed(r.parked->length - r.cache.length() + 1);
    if (needed > room) continue;
    const std::int32_t returned = mneme::bring_back(r, *lower);
    if (returned == 0) continue;
    counts.returned_tokens += returned;
    room -= needed;
    any = true;
  }
  return any;
}

// They wait another step rather than compute what they can get back, unless no other request has rows.
void Engine::Impl::leave_parked_out(std::vector<ScheduledTokens>& plan) const {
  const auto parked = [&](const ScheduledTokens& rows) { return requests.at(rows.id)->parked.has_value(); };
  if (std::all_of(plan.begin(), plan.end(), parked)) return plan.resize(std::min<std::size_t>(plan.size(), 1));
  std::erase_if(plan, parked);
}

bool Engine::Impl::fits(const std::vector<ScheduledTokens>& plan) const {
  std::int64_t needed = 0;
  for (const ScheduledTokens& rows : plan) needed += requests.at(rows.id)->cache.blocks_needed(rows.n_tokens);
  return agreed(needed <= pool->n_free());
}

// Copies of states save others' prompts; who runs needs none.
bool Engine::Impl::forget_copies() {
  bool any = false;
  for (Request* r : active) any |= r->cache.states().forget_kept();
  return any;
}

// The least urgent running request, the latest of equals, waits for room again; its pages go when they are wanted.
// False: no other request runs, or none can be interrupted.
bool Engine::Impl::preempt() {
  Request* victim = nullptr;
  std::int32_t n_running = 0;
  for (Request* r : active) {
    if (r->state != Request::State::kRunning) continue;
    ++n_running;
    if (r->preemptible() && (victim == nullptr || r->priority <= victim->priority)) victim = r;
  }
  if (victim == nullptr || n_running == 1) return false;
  interrupt(*victim);
  return true;
}

void Engine::Impl::interrupt(Request& r) {
  r.state = Request::State::kWaiting;
  r.held = false;
  // Exact keys and values may be computed in chunks; those of a method come from steps that attended a part.
  const bool in_chunks = r.method == nullptr && !options.deterministic;
  if (in_chunks && r.length() > r.prompt_end) r.refill_end = r.length();
  r.last_used = ++use_clock;
  ++r.stats.preemptions;
  ++counts.preemptions;
}

// Where a step fails, a sequence whose state it wrote loses more than the step's tokens, of pages that others may share:
// no request was promised what it needs to compute them again, so it waits for room.
void Engine::Impl::undo(const StepBatch& batch) {
  batch.undo();
  for (auto r = batch.requests.rbegin(); r != batch.requests.rend(); ++r)
    if ((*r)->state == Request::State::kRunning && (*r)->cache.states().any() && !has_unpromised(0)) interrupt(**r);
}

// Sequences that do not run lose pages until there is enough, or nothing left to take. Returns whether any did.
bool Engine::Impl::take_pages(const Request* except, FunctionRef<bool()> enough) {
  std::vector<Request*> holders;
  for (auto& [id, r] : requests) {
    if (r.get() != except && r->state != Request::State::kRunning && r->cache.length() > 0) holders.push_back(r.get());
  }
  // Kept ones first, least recently used first; then waiting ones, the latest first.
  std::sort(holders.begin(), holders.end(), [](const Request* a, const Request* b) {
    if (a->active() != b->active()) return b->active();
    return a->active() ? a->last_used > b->last_used : a->last_used < b->last_used;
  });
  // Pages go from the end. Open ones ahead of all others: 31 tokens at most are lost, and where `except` shares its own
  // it need not copy it. Then those that are not shared, because only they become free; then whatever is left.
  bool took = false;
  const auto drop_page = [&](Request& r) {
    drop_last_page(r);
    took = true;
  };
  for (Request* r : holders) {
    const bool few_lost = !r->loses_all() && !r->cache.states().any();
    if (!enough() && few_lost && r->cache.length() % kPageTokens != 0) drop_page(*r);
  }
  for (bool only_unshared : {true, false}) {
    for (Request* r : holders) {
      while (!enough() && r->cache.length() > 0 && (!only_unshared || !r->cache.shares_last_page())) {
        drop_page(*r);
      }
    }
  }
  return took;
}

void Engine::Impl::drop_last_page(Request& r) {
  const std::int32_t before = r.cache.length();
  const bool preempted = r.active() && r.begun;
  if (lower != nullptr && preempted) park(r, *lower);
  if (lower != nullptr && r.state == Request::State::kKept && before % kPageTokens == 0 && !r.cache.dropped())
    lower->kept_loses(r.id, r.cache);
  r.truncate((before - 1) / kPageTokens * kPageTokens);
  if (preempted) counts.preempted_tokens += before - r.cache.length();
}

// Nothing runs, and the request that is to begin next does not fit: others lose pages until it does. It always does at
// the latest when it alone holds any, because start() saw that it fits into the pool.
void Engine::Impl::make_room() {
  // The request that a running one was waiting for has just finished: resume it.
  bool goes_on = false;
  for (Request* r : active) goes_on |= r->state == Request::State::kRunning && std::exchange(r->held, false);
  if (goes_on) return;
  Request* first = nullptr;
  for (Request* r : active)
    if (!r->held && (first == nullptr || r->priority > first->priority)) first = r;
  const auto has_room = [&] { return agreed(expected_blocks(*first) <= pool->n_free()); };
  take_pages(first, has_room);
  if (!has_room()) forget_copies();
  MNEME_CHECK(has_room(), "request {} needs {} blocks, {} of {} are free", first->id.value, expected_blocks(*first),
              pool->n_free(), pool->n_blocks());
}

// Sequences that miss a step: what the device knows of their drops may be another's afterwards.
void Engine::Impl::settle_others(const StepBatch& batch) {
  for (auto& [id, r] : requests) {
    if (r->holds_sequence() && r->method && r->method->late().any() &&
        std::find(batch.requests.begin(), batch.requests.end(), r.get()) == batch.requests.end())
      r->settle();
  }
}

StepBatch Engine::Impl::gather(const std::vector<ScheduledTokens>& plan) {
  StepBatch batch;
  for (const ScheduledTokens& rows : plan) {
    Request& r = *requests.at(rows.id);
    const std::int32_t begin = r.cache.length();
    const std::int32_t n_drafts = size32(r.drafts.tokens), n_known = rows.n_tokens - n_drafts;
    MNEME_CHECK(n_known >= 1 && begin + n_known <= r.length(), "{} rows after {} of {} tokens, and {} drafts",
                rows.n_tokens, begin, r.length(), n_drafts);
    if (!r.begun) r.stats.shared_tokens = begin;
    r.cache.extend(rows.n_tokens);
    batch.tokens.insert(batch.tokens.end(), r.tokens.begin() + begin, r.tokens.begin() + begin + n_known);
    batch.tokens.insert(batch.tokens.end(), r.drafts.tokens.begin(), r.drafts.tokens.end());
    const bool all = r.wants_prompt_scores() || n_drafts > 0;
    const bool last = r.wants_token() || r.wants_score();
    if (all || last) {
      for (std::int32_t next = all ? begin + 1 : r.cache.length(); next <= r.cache.length(); ++next)
        batch.wanted.push_back({&r, next});
    }
    batch.requests.push_back(&r);
    batch.rows.push_back({.cache = &r.cache,
                          .n_rows = rows.n_tokens,
                          .want_logits = last,
                          .all_logits = all,
                          .method = r.method.get(),
                          .phase = begin >= r.decode_from() ? SequencePhase::kDecode : SequencePhase::kPrefill,
                          .prefill_left = std::max(0, r.decode_from() - begin - rows.n_tokens)});
  }
  settle_others(batch);
  return batch;
}

std::vector<Sample> Engine::Impl::compute(const StepBatch& batch) {
  return mneme::compute(batch, *forward, *threads);
}

namespace {

void take_sample(Request& r, Sample sample, RequestEvent& event) {
  if (r.is_end(sample.sampled.token)) {
    event.finished = StopReason::kEnd;
    return;
  }
  event.token = sample.sampled;
  event.top = std::move(sample.top);
  r.tokens.push_back(sample.sampled.token);
  ++r.stats.answer_tokens;
  if (r.stats.answer_tokens == r.max_tokens) event.finished = StopReason::kLength;
}

void count_drafts(Request& r, std::span<const Sample> samples) {
  const auto drafted = size32(r.drafts.tokens);
  if (drafted == 0) return;
  std::int32_t accepted = -1;  // the first token needed no draft
  for (const Sample& s : samples.first(drafted + 1)) accepted += s.is_sampled() ? 1 : 0;
  ++r.stats.verify_steps;
  r.stats.drafted_tokens += drafted;
  r.drafts.drafter->verified(drafted, accepted);
}

// Drafts end before the first one that cannot be sampled: out of the vocabulary, or forbidden by the grammar.
void cut_drafts(Request& r, std::int64_t vocab) {
  std::vector<std::int32_t>& drafts = r.drafts.tokens;
  drafts.erase(std::ranges::find_if(drafts, [&](std::int32_t token) { return token < 0 || token >= vocab; }),
               drafts.end());
  drafts.resize(r.sampler.n_allowed(drafts));
}

void observe(const StepBatch& batch, double seconds, PrefillChunk& chunk) {
  std::int32_t answer_rows = 0, prompt_tokens = 0;
  for (const SequenceRows& rows : batch.rows)
    (rows.phase == SequencePhase::kDecode ? answer_rows : prompt_tokens) += rows.n_rows;
  chunk.observe(answer_rows, prompt_tokens, seconds);
}

}  // namespace

// Blocks of the pool that rows of drafts may take: those that no request was promised. Where admission reserves
// all that a request may take and no layer keeps a window, rows up to its last token are its own already.
std::int64_t Engine::Impl::blocks_for_drafts(const std::vector<ScheduledTokens>& plan) const {
  std::int64_t needed = 0;
  for (const ScheduledTokens& rows : plan) needed += requests.at(rows.id)->cache.blocks_needed(rows.n_tokens);
  return pool->n_free() - (forecasts() ? needed : std::max(needed, reserved_blocks()));
}

void Engine::Impl::add_drafts(std::vector<ScheduledTokens>& plan) {
  std::int32_t room = options.max_batched_tokens;
  bool any = false;
  for (const ScheduledTokens& rows : plan) {
    Request& r = *requests.at(rows.id);
    r.drafts.tokens.clear();
    room -= rows.n_tokens;
    any = any || r.takes_drafts();
  }
  if (!any) return;
  const bool promised = !forecasts() && pool->windows().n_layers() == 0;
  std::int64_t blocks = promised ? 0 : blocks_for_drafts(plan);
  for (ScheduledTokens& rows : plan) {
    Request& r = *requests.at(rows.id);
    const std::int32_t left = r.max_tokens - r.stats.answer_tokens - 1;  // the last token is not computed
    const std::int32_t most = std::min({room, left, Drafter::kMost});
    if (!r.takes_drafts() || most <= 0) continue;
    r.drafts.drafter->draft(r.tokens, most, r.drafts.tokens);
    cut_drafts(r, forward->vocab());
    const std::int64_t taken = r.cache.blocks_needed(1 + size32(r.drafts.tokens)) - r.cache.blocks_needed(1);
    if (!promised && taken > blocks) r.drafts.tokens.clear();
    if (r.drafts.tokens.empty()) continue;
    blocks -= taken;
    room -= size32(r.drafts.tokens);
    rows.n_tokens += size32(r.drafts.tokens);
  }
}

bool Engine::Impl::tell_accepted() {
  bool any = false;
  for (Request* const request : std::vector(active)) {
    Request& r = *request;
    if (r.drafts.untold.empty()) continue;
    any = true;
    RequestEvent event = event_of(r);
    Sample sample = std::move(r.drafts.untold.front());
    r.drafts.untold.pop_front();
    ++r.stats.accepted_tokens;
    take_sample(r, std::move(sample), event);
    if (event.finished) end(r, *event.finished);
    events.push_back(std::move(event));
  }
  return any;
}

void Engine::Impl::apply(const StepBatch& batch, std::vector<Sample> samples, double seconds) {
  std::size_t next = 0;
  observe(batch, seconds, chunk);
  prompt_next =
      std::ranges::none_of(batch.rows, [](const SequenceRows& rows) { return rows.phase == SequencePhase::kPrefill; });
  for (Request* const request : batch.requests) {
    Request& r = *request;
    r.state = Request::State::kRunning;
    r.begun = true;
    (r.length() == r.prompt_end ? r.stats.prefill_seconds : r.stats.decode_seconds) += seconds;
    // A request that lost pages computes again what was counted.
    r.stats.prompt_tokens =
        std::max(r.stats.prompt_tokens, std::min(r.cache.length(), r.prompt_end) - r.stats.shared_tokens);
    RequestEvent event = event_of(r);
    const std::int32_t length = r.length();  // before this step's token
    if (next < batch.wanted.size() && batch.wanted[next].request == request)
      count_drafts(r, std::span(samples).subspan(next));
    for (; next < batch.wanted.size() && batch.wanted[next].request == request; ++next) {
      Sample& s = samples[next];
      if (batch.wanted[next].predicted > length) {
        if (s.is_sampled()) r.drafts.untold.push_back(std::move(s));
      } else if (batch.wanted[next].predicted == length) {
        if (r.max_tokens > 0) take_sample(r, std::move(s), event);
      } else if (r.scores.score_prompt) {
        r.scores.prompt.push_back({.logprob = s.sampled.logprob, .top = std::move(s.top)});
      } else {
        r.stats.tail_log_likelihood += s.sampled.logprob;
        ++r.stats.tail_scored;
      }
    }
    if (r.max_tokens == 0 && r.cache.length() == r.length()) event.finished = StopReason::kLength;
    if (event.finished) end(r, *event.finished);
    events.push_back(std::move(event));
  }
  // Copies of states that later requests can go on from, where no request was promised their room.
  for (Request* const r : batch.requests)
    if (r->keeps_state() && has_unpromised(pool->shape().state_blocks())) r->cache.states().keep();
}

std::vector<RequestEvent> Engine::Impl::take_events() {
  for (const RequestEvent& event : events) {
    if (!event.finished) continue;
    const auto it = requests.find(event.id);
    if (it != requests.end() && it->second->state == Request::State::kEnded) reported.push_back(event.id);
  }
  return std::exchange(events, {});
}

}  // namespace mneme

#include "src/engine/loop/generation_table.h"

#include <algorithm>
#include <utility>

#include "src/base/seconds.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

// Pages of a sequence that is bound to its method are of no use to others, and its own prompt is read from the start.
bool shares(const GenerationInput& input) {
  return input.method == nullptr || !input.method->binds_sequence();
}

}  // namespace

GenerationTable::GenerationTable(SharedModel& model, SequenceKeeper& keeper, LoopMetrics& metrics)
    : model_(model), keeper_(keeper), metrics_(metrics), waits_(model, keeper) {
  model_.loop->deliver_others([this](std::vector<RequestEvent> events, double seconds) { take_all(events, seconds); });
}

GenerationTable::~GenerationTable() {
  model_.loop->exclusive([&](Engine&) {
    while (!generations_.empty()) drop(*generations_.begin()->second);
  });
  model_.loop->deliver_others({});
}

bool GenerationTable::keeps(const GenerationInput& input) const {
  return shares(input) && (keeper_.keeps(input.slot) || input.n > 1);
}

RequestInput GenerationTable::request_of(const GenerationInput& input, std::int32_t choice) const {
  RequestInput request;
  request.sampling = input.sampling;
  request.constraint = input.constraint;
  if (request.sampling.seed) *request.sampling.seed += choice;
  request.max_tokens = input.max_tokens;
  if (!input.stop.ignore_end) request.end_tokens = model_.end_tokens;
  request.end_tokens.insert(request.end_tokens.end(), input.stop.tokens.begin(), input.stop.tokens.end());
  request.priority = input.priority;
  request.group = input.group;
  request.group_limit = input.group_limit;
  if (choice == 0) request.score_prompt = input.score_prompt;
  request.top_logprobs = input.top_logprobs;
  request.keep_sequence = keeps(input);
  request.method = input.method;
  return request;
}

void GenerationTable::add_choice(Generation& g, RequestId id, std::int32_t index) {
  g.requests.push_back(id);
  ++waiting_;
  choices_.emplace(id, Choice{.generation = &g,
                              .index = index,
                              .stream = AnswerStream(*model_.text->tokenizer, g.input.stop.strings,
                                                     g.input.stop.keep_string, g.input.stop.scope),
                              .held = {},
                              .begun = {},
                              .first_token = {},
                              .last_token = {},
                              .between = {}});
}

void GenerationTable::start(Generation& g, GenerationInput& input) {
  // Sequences that it may begin from are used from now on; it takes one when its turn comes. A wrong slot is refused.
  if (shares(input)) keeper_.source_for(input.prompt, input.cache_salt, input.slot);
  RequestInput request = request_of(input, 0);
  request.prompt = input.prompt;
  const RequestId id = model_.engine->start({}, std::move(request));
  g.input = std::move(input);
  g.open = g.input.n;
  add_choice(g, id, 0);
  waits_.add(id, g.input);
}

void GenerationTable::submit(GenerationId id, GenerationInput input, std::shared_ptr<GenerationSink> sink,
                             Clock::time_point arrived) {
  auto owned = std::make_unique<Generation>();
  Generation& g = *owned;
  g.id = id;
  g.sink = std::move(sink);
  g.arrived = arrived;
  g.deadline = Clock::time_point::max();
  if (input.timeout_seconds > 0)
    g.deadline = arrived + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(std::min(input.timeout_seconds, 1e8)));
  const std::int32_t n = input.n;
  const auto refuse = [&](Failure why) {
    emit(g, {.failure = std::move(why)});
    ended_ += n;
  };
  if (broken_) return refuse(*broken_);
  try {
    start(g, input);
  } catch (const Error& e) {
    return refuse(failure_of(e, FailureKind::kRefused));
  }
  generations_.emplace(id, std::move(owned));
  std::int32_t before = 0;
  for (const auto& [request, c] : choices_)
    before += c.generation != &g && !c.has_begun && c.generation->input.priority >= g.input.priority ? 1 : 0;
  emit(g, {.accepted = true, .queue_position = before});
}

// All answers to a prompt share its pages: the others begin where the first one has read it.
void GenerationTable::fork_others(Generation& g, RequestId first) {
  const auto n_prompt = size32(g.input.prompt);
  const std::int32_t shared = (n_prompt - 1) / kPageTokens * kPageTokens;
  for (std::int32_t i = 1; i < g.input.n; ++i) {
    RequestInput request = request_of(g.input, i);
    request.prompt.assign(g.input.prompt.begin() + (shares(g.input) ? shared : 0), g.input.prompt.end());
    const Origin origin = shares(g.input) ? Origin::prefix(first, shared) : Origin{};
    add_choice(g, model_.engine->start(origin, std::move(request)), i);
  }
}

SequenceKeeper::Request GenerationTable::kept_request(const Generation& g, RequestId id) const {
  return {.id = id,
          .prompt_tokens = size32(g.input.prompt),
          .salt = g.input.cache_salt,
          .slot = g.input.slot,
          .full_attention = g.input.method == nullptr};
}

// A step of a prefill that leaves tokens of the prompt to others.
void GenerationTable::report_progress(const Generation& g, const RequestEvent& event, double seconds) {
  const std::int32_t cached = model_.engine->stats(event.id).shared_tokens;
  emit(g, {.progress = PromptProgress{.total = size32(g.input.prompt),
                                      .cached = cached,
                                      .processed = cached + event.prompt_done,
                                      .seconds = seconds}});
}

void GenerationTable::report_prompt(Generation& g, RequestId id, GenerationEvent& news) {
  g.prompt_reported = true;
  waits_.forget(id);
  const auto scores = model_.engine->prompt_scores(id);
  news.prompt = PromptSummary{.tokens = size32(g.input.prompt),
                              .cached_tokens = model_.engine->stats(id).shared_tokens,
                              .scores = {scores.begin(), scores.end()}};
  if (keeps(g.input)) keeper_.prompt_done(kept_request(g, id));
}

// Times of tokens; after the first one the other answers begin.
void GenerationTable::take_token(Choice& c, const RequestEvent& event, Clock::time_point now) {
  const bool first = event.token && !c.has_token;
  if (event.token) {
    (first ? void(c.first_token = now) : c.between.push_back(seconds_between(c.last_token, now)));
    c.has_token = true;
    c.last_token = now;
  }
  if (first) count_reads(*c.generation, event.id);
  const bool begins = first || (event.finished && !c.has_token);
  // The map may move its other nodes, never `c`: references into an unordered_map stay.
  if (begins && c.index == 0 && c.generation->input.n > 1) fork_others(*c.generation, event.id);
}

void GenerationTable::take(const RequestEvent& event, Clock::time_point now) {
  const auto it = choices_.find(event.id);
  if (it == choices_.end()) return;
  Choice& c = it->second;
  Generation& g = *c.generation;
  GenerationEvent news{.choice = c.index};
  if (!c.has_begun) {
    c.has_begun = true;
    c.begun = now;
    --waiting_;
    if (c.index == 0) metrics_.count_prefix(g.input.prompt.size(), model_.engine->stats(event.id).shared_tokens);
  }
  const bool advanced = event.prompt_done > std::exchange(c.prompt_done, event.prompt_done);
  if (g.input.report_progress && advanced && !g.prompt_reported && !event.token && !event.finished)
    report_progress(g, event, seconds_between(g.arrived, now));
  if (!g.prompt_reported && (event.token || event.finished)) report_prompt(g, event.id, news);
  take_token(c, event, now);  // a stop string ends the request: the others fork it before
  // What is not streamed waits: to wake another thread for each token would take time from the one that computes.
  c.held.append(c.stream.take(*model_.engine, event));
  if (g.input.stream || c.held.end) news.piece = std::exchange(c.held, {});
  if (news.piece.end) return end_choice(event.id, std::move(news), now);
  // Often enough to look at, seldom enough to send.
  constexpr std::size_t kReportReadsEvery = 16;
  if (event.token && g.input.stream && c.between.size() % kReportReadsEvery == 0) report_reads(event.id, news);
  if (news.prompt || !news.piece.empty()) emit(g, std::move(news));
}

void GenerationTable::count(const Choice& c, StopReason reason, const RequestStats& stats, Clock::time_point now) {
  const Generation& g = *c.generation;
  metrics_.count_answer({.finished = finish_reason_name(reason),
                         .prompt_tokens = c.index == 0 ? std::ssize(g.input.prompt) : 0,
                         .answer_tokens = stats.answer_tokens,
                         .queued = c.has_begun ? seconds_between(g.arrived, c.begun) : -1,
                         .first_token = c.has_token ? seconds_between(g.arrived, c.first_token) : -1,
                         .prefill = c.has_token ? stats.prefill_seconds : -1,
                         .decode = c.has_token ? stats.decode_seconds : -1,
                         .whole = seconds_between(g.arrived, now),
                         .between_tokens = c.between});
}

// The request has ended in the engine. Its sequence goes to the keeper, and the generation with its last answer.
void GenerationTable::end_choice(RequestId id, GenerationEvent news, Clock::time_point now) {
  Choice& c = choices_.at(id);
  Generation& g = *c.generation;
  metrics_.count_method(g.input.kv.method, news.piece.end->stats.method);
  report_reads(id, news);
  stop_counting(g, id);
  count(c, news.piece.end->reason, model_.engine->stats(id), now);
  emit(g, std::move(news));
  waits_.forget(id);
  choices_.erase(id);
  std::erase(g.requests, id);
  if (keeps(g.input)) keeper_.ended(kept_request(g, id));
  ++ended_;
  const GenerationId of = g.id;
  if (--g.open == 0) generations_.erase(of);
}

void GenerationTable::report_reads(RequestId id, GenerationEvent& news) const {
  if (const PageReads* reads = reads_.reads_of(model_.engine->method_stats(id))) news.piece.reads = *reads;
}

// From its first token on: until then it may take a prefix over, and a method state with it.
void GenerationTable::count_reads(const Generation& g, RequestId id) {
  const MethodStats* const method = model_.engine->method_stats(id);
  if (!g.input.count_reads || method == nullptr || reads_.reads_of(method) != nullptr) return;
  reads_.count_for(method);
  model_.engine->set_observer(&reads_);
}

void GenerationTable::stop_counting(const Generation& g, RequestId id) {
  if (!g.input.count_reads) return;
  reads_.forget(model_.engine->method_stats(id));
  if (reads_.empty()) model_.engine->set_observer(nullptr);
}

// Ends what a generation still has in the engine, and forgets it.
void GenerationTable::drop(Generation& g) {
  const Clock::time_point now = Clock::now();
  for (const RequestId id : g.requests) {
    const Choice& c = choices_.at(id);
    if (!c.has_begun) --waiting_;
    count(c, StopReason::kCancelled, model_.engine->stats(id), now);
    stop_counting(g, id);
    waits_.forget(id);
    choices_.erase(id);
    if (keeps(g.input)) {
      model_.engine->stop(id);  // what is computed stays for others
      keeper_.ended(kept_request(g, id));
    } else {
      model_.engine->cancel(id);
    }
  }
  ended_ += g.open;
  const GenerationId of = g.id;
  generations_.erase(of);
}

void GenerationTable::cancel(GenerationId id) {
  const auto it = generations_.find(id);
  if (it != generations_.end()) drop(*it->second);
}

void GenerationTable::fail_all(const Failure& failure) {
  while (!generations_.empty()) {
    Generation& g = *generations_.begin()->second;
    emit(g, {.failure = failure});
    drop(g);
  }
}

void GenerationTable::expire(Clock::time_point now) {
  std::vector<Generation*> late;
  for (const auto& [id, g] : generations_)
    if (g->deadline <= now) late.push_back(g.get());
  for (Generation* g : late) {
    emit(*g, {.failure = Failure{.kind = FailureKind::kTimeout,
                                 .error = ErrorKind::kRequest,
                                 .message = "the request's time is over before its answer is complete"}});
    drop(*g);
  }
}

void GenerationTable::run_step() {
  if (keeper_.has_work()) keeper_.work(model_.engine->views().empty());
  if (const std::int64_t taken = waits_.plan(); taken > 0) metrics_.count_prefix(0, taken);
  if (waiting_ > 0) keeper_.make_room();
  model_.loop->step_now();
}

void GenerationTable::take_all(const std::vector<RequestEvent>& events, double seconds) {
  const Clock::time_point now = Clock::now();
  std::int64_t rows = 0;
  for (const RequestEvent& event : events) {
    const auto it = choices_.find(event.id);
    if (it == choices_.end()) continue;
    rows += it->second.has_token ? 1 : std::max(event.prompt_done - it->second.prompt_done, 0);
  }
  fail_all_where([&] {
    for (const RequestEvent& event : events) take(event, now);
  });
  if (rows > 0) metrics_.count_step(rows, seconds);
}

Failure GenerationTable::failure_of(const Error& e, FailureKind kind) {
  Failure failure{.kind = kind, .error = e.kind(), .message = e.what()};
  if (e.kind() == ErrorKind::kDevice) broken_ = failure;
  return failure;
}

void GenerationTable::fail_all_where(FunctionRef<void()> fails) {
  try {
    fails();
  } catch (const Error& e) {
    fail_all(failure_of(e, FailureKind::kInternal));
  } catch (const std::exception& e) {
    fail_all({.kind = FailureKind::kInternal, .error = ErrorKind::kResource, .message = e.what()});
  }
}

void GenerationTable::step() {
  fail_all_where([this] { run_step(); });
}

void GenerationTable::report_gauges() {
  const PagePool& pool = model_.engine->pool();
  metrics_.set({.running = std::ssize(choices_) - waiting_,
                .waiting = waiting_,
                .waiting_for_prefix = waits_.waiting(),
                .preemptions = model_.engine->counts().preemptions,
                .preempted_tokens = model_.engine->counts().preempted_tokens,
                .returned_tokens = model_.engine->counts().returned_tokens,
                .prefill_chunk = model_.engine->prefill_chunk(),
                .kv_blocks_used = pool.n_blocks() - pool.n_free(),
                .kv_blocks_total = pool.n_blocks(),
                .kv_block_bytes = static_cast<std::int64_t>(pool.shape().page_bytes()),
                .kv_tier = pool.in_host_memory() ? "host" : "device",
                .kv_offloaded = pool.on_device() && pool.in_host_memory(),
                .method_memory = model_.engine->method_memory(),
                .host = keeper_.host() ? std::optional(keeper_.host()->store().stats()) : std::nullopt,
                .disk = keeper_.disk() ? std::optional(keeper_.disk()->stats()) : std::nullopt,
                .disk_page_bytes = keeper_.disk() ? keeper_.disk()->slot_bytes() : 0,
                .spill = pool.spill_stats(),
                .cached_sequences = keeper_.cached()});
}

}  // namespace mneme

#include <algorithm>
#include <optional>
#include <utility>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/engine/session/session_impl.h"
#include "src/engine/speculation/speculation.h"

namespace mneme {

Session::Impl::Impl(std::shared_ptr<LanguageModel::Impl> of) : model(std::move(of)), method(model->method) {}

Session::Impl::~Impl() {
  if (!id.valid()) return;
  model->loop->exclusive([&](Engine& engine) { engine.cancel(id); });
}

void Session::Impl::expect_idle() const {
  if (streaming) fail(ErrorKind::kRequest, "a stream of this session has not ended: read it to its end or destroy it");
}

// Tokens that are still to be computed for this turn.
RequestInput Session::Impl::input_of(const Turn& turn, const AskOptions& how) const {
  RequestInput input;
  if (document) {
    if (!turn.document.empty()) {
      fail(ErrorKind::kRequest, "this session has read a document already: the question cannot have another");
    }
    if (how.framing == Framing::kRaw) {
      fail(ErrorKind::kRequest, "a document that was read with the model's framing takes a question with framing");
    }
    if (turn.question.empty()) fail(ErrorKind::kRequest, "the question is empty");
    Turn whole = *document;
    whole.question = turn.question;
    ChatFormat::SplitTurn split = model->text->chat.user_turn_split(
        {.document = whole.document, .question = whole.question, .system = whole.system}, true);
    input.prompt = std::move(split.question);
    if (how.question == QuestionPath::kDecode) input.decode_prompt_tail = size32(input.prompt);
    return input;
  }
  if (id.valid() && !turn.system.empty()) {
    fail(ErrorKind::kRequest, "a system text belongs to the first turn of a session");
  }
  return input_of(turn, how, model->text->prompt_of(turn, how, !id.valid()));
}

RequestInput Session::Impl::input_of(const Turn& turn, const AskOptions& how, TextSide::Prompt prompt) const {
  RequestInput input;
  if (answered && framing == Framing::kChat) input.prompt = model->text->chat.end_of_answer();
  const auto before = size32(input.prompt);
  const auto [begin, end] = model->text->question_span(turn, how, !id.valid(), prompt.tokens);
  if (begin < end) input.question_span = {before + begin, before + end};
  input.prompt.insert(input.prompt.end(), prompt.tokens.begin(), prompt.tokens.end());
  input.decode_prompt_tail = prompt.n_question;
  return input;
}

std::unique_ptr<PendingAnswer> Session::Impl::submit(RequestInput input, PendingAnswer::Rules rules) {
  input.keep_sequence = true;
  const std::shared_ptr<const Plan> plan = input.method;
  auto pending = std::make_unique<PendingAnswer>(model, std::move(rules));
  model->loop->exclusive([&](Engine& engine) {
    id = engine.start(id.valid() ? Origin::next_turn(id) : Origin{}, std::move(input));
    pending->begin(id);
  });
  last_method = plan;
  return pending;
}

namespace {

void check_options(const GenerationOptions& options, const AskOptions& how, std::int64_t vocabulary) {
  if (options.max_tokens < 1) {
    fail(ErrorKind::kOption, "max_tokens: expected 1 or more, found {}", options.max_tokens);
  }
  const std::int32_t top = how.top_logprobs.value_or(0);
  if (top < 0 || top > vocabulary)
    fail(ErrorKind::kOption, "top_logprobs: expected 0 to {}, found {}", vocabulary, top);
}

}  // namespace

std::unique_ptr<PendingAnswer> Session::Impl::start(const Turn& turn, const GenerationOptions& options,
                                                    const AskOptions& how) {
  expect_idle();
  check_options(options, how, model->text->info.vocabulary);
  return start(input_of(turn, how), options, how);
}

std::unique_ptr<PendingAnswer> Session::Impl::start(const PreparedTurn::Impl& turn, const GenerationOptions& options) {
  expect_idle();
  check_options(options, turn.how, model->text->info.vocabulary);
  if (id.valid()) fail(ErrorKind::kRequest, "a prepared turn is the first of a session: this session had one");
  if (turn.text != model->text.get())
    fail(ErrorKind::kRequest, "the turn was prepared by another model's file: its tokens mean other words here");
  return start(input_of(turn.turn, turn.how, turn.prompt), options, turn.how);
}

std::unique_ptr<PendingAnswer> Session::Impl::start(RequestInput input, const GenerationOptions& options,
                                                    const AskOptions& how) {
  input.method = how.kv ? model->plans->plan_for(*how.kv) : method;
  input.drafter = drafter_of(*model->engine, how.speculation, input.method.get());
  input.sampling = options.sampling;
  if (random && !input.sampling.seed) {
    input.sampling.seed = random->seed;
    input.draws_before = random->draws;
  }
  input.max_tokens = options.max_tokens;
  input.top_logprobs = how.top_logprobs.value_or(0);
  if (!options.ignore_end) input.end_tokens = model->end_tokens;
  std::unique_ptr<PendingAnswer> pending =
      submit(std::move(input), {.stop = options.stop, .scores = how.top_logprobs.has_value()});
  document.reset();
  answered = true;
  framing = how.framing;
  return pending;
}

void Session::Impl::finish(PendingAnswer& pending) {
  if (!pending.done()) pending.abandon();
  if (pending.random()) random = pending.random();
}

void Session::Impl::run(PendingAnswer& pending, const AskCallbacks& callbacks) {
  bool cancelled = false;
  const auto cancel = [&] {
    if (!std::exchange(cancelled, true)) pending.cancel();
  };
  try {
    while (!pending.done()) {
      if (!cancelled && callbacks.should_stop && callbacks.should_stop()) cancel();
      const std::optional<PendingAnswer::News> news = pending.next();
      if (!news) continue;
      if (news->progress && callbacks.on_progress)
        callbacks.on_progress("prefill, tokens", news->progress->done, news->progress->total);
      if (!news->piece.text.empty() && callbacks.on_text && !callbacks.on_text(news->piece.text)) cancel();
    }
  } catch (...) {
    finish(pending);
    throw;
  }
  if (cancelled) pending.answer().stopped = StopReason::kCancelled;
  finish(pending);
}

Session::Session(const LanguageModel& model) : impl_(std::make_shared<Impl>(model.impl_)) {}
Session::Session(const LanguageModel& model, const Recipe& kv) : Session(model) {
  impl_->method = impl_->model->plans->plan_for(kv);
}
Session::Session(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

void Session::read(const Turn& document, const AskCallbacks& callbacks) {
  Impl& s = *impl_;
  s.expect_idle();
  if (s.id.valid()) fail(ErrorKind::kRequest, "a document is read in the first turn of a session");
  if (document.document.empty()) fail(ErrorKind::kRequest, "the document is empty");
  if (!document.question.empty()) fail(ErrorKind::kRequest, "read() takes a document; the question goes to ask()");
  // With any question the document's tokens are the same; without one some families trim its end.
  const ChatFormat::Turn words{.document = document.document, .question = "?", .system = document.system};
  RequestInput input;
  input.prompt = s.model->text->chat.user_turn_split(words, true).document;
  input.max_tokens = 0;
  input.method = s.method;
  const std::unique_ptr<PendingAnswer> pending = s.submit(std::move(input), {});
  s.document = document;
  s.run(*pending, callbacks);
}

Answer Session::ask(const Turn& turn, const GenerationOptions& options, const AskOptions& how,
                    const AskCallbacks& callbacks) {
  const std::unique_ptr<PendingAnswer> pending = impl_->start(turn, options, how);
  impl_->run(*pending, callbacks);
  return std::move(pending->answer());
}

Answer Session::ask(const PreparedTurn& turn, const GenerationOptions& options, const AskCallbacks& callbacks) {
  const std::unique_ptr<PendingAnswer> pending = impl_->start(*turn.impl_, options);
  impl_->run(*pending, callbacks);
  return std::move(pending->answer());
}

TextStream Session::stream(const Turn& turn, const GenerationOptions& options, const AskOptions& how) {
  auto impl = std::make_unique<TextStream::Impl>();
  impl->session = impl_;
  impl->pending = impl_->start(turn, options, how);
  impl_->streaming = true;
  return TextStream(std::move(impl));
}

Session Session::fork() {
  Impl& s = *impl_;
  s.expect_idle();
  auto other = std::make_shared<Impl>(s.model);
  other->method = s.method;
  other->last_method = s.last_method;
  other->answered = s.answered;
  other->framing = s.framing;
  other->document = s.document;
  if (!s.id.valid()) return Session(std::move(other));
  RequestInput input;
  input.max_tokens = 0;
  input.keep_sequence = true;
  input.method = s.last_method;
  PendingAnswer pending(s.model, {});
  s.model->loop->exclusive([&](Engine& engine) {
    other->id = engine.start(Origin::fork(s.id), std::move(input));
    pending.begin(other->id);
  });
  other->run(pending, {});
  other->random.reset();
  return Session(std::move(other));
}

std::int64_t Session::count_tokens(const Turn& turn, const AskOptions& how) const {
  return impl_->input_of(turn, how).prompt.size();
}

std::vector<std::int32_t> Session::tokens() const {
  std::vector<std::int32_t> all;
  if (!impl_->id.valid()) return all;
  impl_->model->loop->exclusive([&](Engine& engine) {
    const auto tokens = engine.tokens(impl_->id);
    all.assign(tokens.begin(), tokens.end());
  });
  return all;
}

}  // namespace mneme

#include <algorithm>
#include <optional>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/engine/kv_method.h"
#include "src/engine/session_impl.h"
#include "src/engine/stop_matcher.h"

namespace mneme {
namespace {

StopReason stop_reason_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
      return StopReason::kEnd;
    case FinishReason::kLength:
      return StopReason::kLength;
    case FinishReason::kStop:
      return StopReason::kStopString;
    case FinishReason::kCancelled:
      return StopReason::kCancelled;
  }
  MNEME_CHECK(false, "finish reason {}", static_cast<int>(reason));
}

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kEnd:
      return "end";
    case StopReason::kLength:
      return "length";
    case StopReason::kStopString:
      return "stop";
    case StopReason::kCancelled:
      return "cancelled";
  }
  MNEME_CHECK(false, "stop reason {}", static_cast<int>(reason));
}

// Starts or goes on with the sequence, which is kept.
void Session::Impl::start(RequestInput input) {
  input.keep_sequence = true;
  input.method = model->method;
  if (id.valid()) {
    engine().keep_going(id, std::move(input));
  } else {
    id = engine().submit(std::move(input));
  }
}

// Tokens that are still to be computed for this turn.
RequestInput Session::Impl::input_of(const Turn& turn, const AskOptions& how) const {
  RequestInput input;
  if (document) {
    if (!turn.document.empty()) {
      fail(ErrorKind::kRequest, "this session has read a document already: the question cannot bring another");
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
    if (how.question == QuestionPath::kDecode)
      input.decode_prompt_tail = static_cast<std::int32_t>(input.prompt.size());
    return input;
  }
  if (id.valid() && !turn.system.empty()) {
    fail(ErrorKind::kRequest, "a system text belongs to the first turn of a session");
  }
  TextSide::Prompt prompt = model->text->prompt_of(turn, how, !id.valid());
  if (answered && framing == Framing::kChat) input.prompt = model->text->chat.end_of_answer();
  const auto before = static_cast<std::int32_t>(input.prompt.size());
  const auto [begin, end] = model->text->question_span(turn, how, !id.valid(), prompt.tokens);
  if (begin < end) input.question_span = {before + begin, before + end};
  input.prompt.insert(input.prompt.end(), prompt.tokens.begin(), prompt.tokens.end());
  input.decode_prompt_tail = prompt.n_question;
  return input;
}

void Session::Impl::generate(Answer& answer, const GenerationOptions& options, const AskCallbacks& callbacks) {
  const auto remember_draws = [&] {
    const Sampler& sampler = engine().sampler(id);
    if (sampler.draws() > 0) random = {.seed = sampler.seed(), .draws = sampler.draws()};
  };
  try {
    run_steps(answer, options, callbacks);
    remember_draws();
  } catch (...) {
    engine().stop(id);
    remember_draws();
    throw;
  }
}

void Session::Impl::run_steps(Answer& answer, const GenerationOptions& options, const AskCallbacks& callbacks) {
  StreamDecoder decoder(*model->text->tokenizer);
  StopMatcher matcher(options.stop);
  bool cancelled = false;
  const auto give_out = [&](const std::string& text) {
    answer.text += text;
    if (!text.empty() && callbacks.on_text && !callbacks.on_text(text)) cancelled = true;
  };
  for (std::optional<FinishReason> finished; !finished;) {
    if (!cancelled && callbacks.should_stop && callbacks.should_stop()) cancelled = true;
    if (cancelled || matcher.matched()) engine().stop(id);
    for (const RequestEvent& event : engine().step()) {
      if (event.id != id) continue;
      if (event.finished) finished = event.finished;
      if (answer.tokens.empty() && callbacks.on_progress)
        callbacks.on_progress("prefill, tokens", event.prompt_done, event.prompt_total);
      if (event.token && !matcher.matched()) {
        answer.tokens.push_back(event.token->token);
        give_out(matcher.push(decoder.push(event.token->token)));
      }
    }
    if (finished) {
      give_out(matcher.push(decoder.finish()));
      give_out(matcher.finish());
      answer.stopped = stop_reason_of(*finished);
      if (matcher.matched()) answer.stopped = StopReason::kStopString;
      if (cancelled) answer.stopped = StopReason::kCancelled;
    }
  }
}

Session::Session(const LanguageModel& model) : impl_(std::make_unique<Impl>()) {
  impl_->model = model.impl_;
}
Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() {
  if (impl_ != nullptr && impl_->id.valid()) impl_->engine().release(impl_->id);
}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

void Session::read(const Turn& document, const AskCallbacks& callbacks) {
  Impl& s = *impl_;
  if (s.id.valid()) fail(ErrorKind::kRequest, "a document is read in the first turn of a session");
  if (document.document.empty()) fail(ErrorKind::kRequest, "the document is empty");
  if (!document.question.empty()) fail(ErrorKind::kRequest, "read() takes a document; the question goes to ask()");
  // With any question the document's tokens are the same; without one some families trim its end.
  const ChatFormat::Turn words{.document = document.document, .question = "?", .system = document.system};
  RequestInput input;
  input.prompt = s.model->text->chat.user_turn_split(words, true).document;
  input.max_tokens = 0;
  s.start(std::move(input));
  s.document = document;
  Answer nothing;
  s.generate(nothing, {}, callbacks);
}

Answer Session::ask(const Turn& turn, const GenerationOptions& options, const AskOptions& how,
                    const AskCallbacks& callbacks) {
  Impl& s = *impl_;
  if (options.max_tokens < 1) {
    fail(ErrorKind::kOption, "max_tokens: expected 1 or more, found {}", options.max_tokens);
  }
  RequestInput input = s.input_of(turn, how);
  input.sampling = options.sampling;
  if (s.random && !input.sampling.seed) {
    input.sampling.seed = s.random->seed;
    input.draws_before = s.random->draws;
  }
  input.max_tokens = options.max_tokens;
  if (!options.ignore_end) input.end_tokens = s.model->end_tokens;
  s.start(std::move(input));
  s.document.reset();
  s.answered = true;
  s.framing = how.framing;
  Answer answer;
  s.generate(answer, options, callbacks);
  const RequestStats stats = s.engine().stats(s.id);
  answer.stats = {
      .prompt_tokens = stats.prompt_tokens,
      .shared_tokens = stats.shared_tokens,
      .answer_tokens = stats.answer_tokens,
      .prefill_seconds = stats.prefill_seconds,
      .decode_seconds = stats.decode_seconds,
      .decode_steps = std::max<std::int64_t>(stats.answer_tokens - (answer.stopped == StopReason::kEnd ? 0 : 1), 0),
      .kv_bytes = static_cast<std::int64_t>(s.engine().kv_bytes(s.id)),
      .method = {}};
  if (const MethodStats* method = s.engine().method_stats(s.id))
    answer.stats.method = kv_method_stats(*method, *s.model->method, s.engine().method_bytes(s.id), s.engine().pool());
  return answer;
}

Session Session::fork() {
  Impl& s = *impl_;
  auto other = std::make_unique<Impl>(s);
  other->random.reset();
  if (s.id.valid()) {
    other->id = RequestId();
    RequestInput input;
    input.max_tokens = 0;
    input.keep_sequence = true;
    input.method = s.model->method;
    other->id = s.engine().fork(s.id, std::move(input));
    Answer nothing;
    other->generate(nothing, {}, {});
  }
  return Session(std::move(other));
}

std::int64_t Session::count_tokens(const Turn& turn, const AskOptions& how) const {
  return static_cast<std::int64_t>(impl_->input_of(turn, how).prompt.size());
}

std::vector<std::int32_t> Session::tokens() const {
  if (!impl_->id.valid()) return {};
  const auto tokens = impl_->engine().tokens(impl_->id);
  return {tokens.begin(), tokens.end()};
}

}  // namespace mneme

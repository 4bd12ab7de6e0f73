// _core.Session and its streams: mneme::Session with signals, forks of the process and threads looked after.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <utility>

#include "mneme/mneme.h"
#include "python/src/arrays.h"
#include "python/src/engine.h"

namespace mneme::python {
namespace {

using nb::literals::operator""_a;

AskCallbacks callbacks_of(SignalCheck& signals) {
  AskCallbacks callbacks;
  callbacks.should_stop = [&signals] { return signals.pending(); };
  return callbacks;
}

GenerationOptions options_of(const Settings& params, const TextSide& text) {
  GenerationInput input = input_of(params, text);
  if (input.n != 1 || input.constraint || !input.stop.tokens.empty() || input.stop.keep_string)
    fail(ErrorKind::kOption,
         "a session takes no n, json_schema, stop_token_ids and include_stop_str_in_output: use LLM.generate()");
  return {.sampling = input.sampling,
          .max_tokens = input.max_tokens,
          .stop = std::move(input.stop.strings),
          .ignore_end = input.stop.ignore_end};
}

AskOptions how_of(const Settings& params, const std::optional<std::string>& kv) {
  AskOptions how;
  if (kv) how.kv = parse_recipe(*kv);
  if (params.contains("logprobs")) how.top_logprobs = nb::cast<std::int32_t>(params["logprobs"]);
  if (params.contains("speculative")) how.speculation = parse_speculation(nb::cast<std::string>(params["speculative"]));
  return how;
}

class PyStream;

// Threads  one call at a time; a second one waits.
class PySession {
 public:
  PySession(PyEngine& engine, const std::optional<std::string>& kv) : loop_(engine.loop()) {
    const LanguageModel& model = loop_->language_model();
    kv ? session_.emplace(model, parse_recipe(*kv)) : session_.emplace(model);
    loop_.reset();  // the session holds the model, not the loop
    text_ = engine.model().text.get();
  }
  PySession(Session session, const TextSide* text) : text_(text) { session_.emplace(std::move(session)); }
  ~PySession() {
    if (process_.is_child()) {
      static_cast<void>(new Session(std::move(*session_)));
      return;
    }
    const Released released;
    session_.reset();
  }
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;

  // `act` on the session, without the GIL; Ctrl-C raises.
  template <typename Act>
  auto run(Act act) {
    process_.expect_same();
    SignalCheck signals;
    const auto work = [&] {
      const Released released;
      const std::lock_guard lock(mutex_);
      return act(*session_, signals);
    };
    if constexpr (std::is_void_v<decltype(work())>) {
      work();
      signals.rethrow();
    } else {
      auto result = work();
      signals.rethrow();
      return result;
    }
  }
  const TextSide& text() const { return *text_; }

 private:
  const ProcessMark process_;
  std::shared_ptr<EngineLoop> loop_;
  std::mutex mutex_;
  std::optional<Session> session_;
  const TextSide* text_;  // of the model, which the session holds
};

class PyStream {
 public:
  PyStream(std::shared_ptr<PySession> session, TextStream stream)
      : session_(std::move(session)), stream_(std::move(stream)) {}
  ~PyStream() {
    if (process_.is_child()) {
      static_cast<void>(new std::optional<TextStream>(std::move(stream_)));
      return;
    }
    const Released released;
    stream_.reset();
  }
  PyStream(const PyStream&) = delete;
  PyStream& operator=(const PyStream&) = delete;

  std::optional<std::string> next() {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    return session_->run([&](Session&, SignalCheck&) { return stream_ ? stream_->next() : std::nullopt; });
  }
  // Ends the answer before the next step.
  void close() {
    if (stream_ && !process_.is_child()) session_->run([&](Session&, SignalCheck&) { stream_.reset(); });
  }
  // From any thread: the next piece is the last one.
  void stop() {
    if (stream_ && !process_.is_child()) stream_->stop();
  }
  // Errors  kRequest: it has not ended.
  Answer answer() const {
    if (!stream_) fail(ErrorKind::kRequest, "the stream was closed before the answer was complete");
    return stream_->answer();
  }

 private:
  const ProcessMark process_;
  std::shared_ptr<PySession> session_;
  std::optional<TextStream> stream_;
};

std::shared_ptr<PySession> make_session(PyEngine& engine, const std::optional<std::string>& kv) {
  return std::make_shared<PySession>(engine, kv);
}

std::shared_ptr<PySession> restore(PyEngine& engine, const std::string& path) {
  const std::shared_ptr<EngineLoop> loop = engine.loop();
  std::optional<Session> session;
  {
    const Released released;
    session.emplace(Session::restore(loop->language_model(), path));
  }
  return std::make_shared<PySession>(std::move(*session), loop->model().text.get());
}

Answer ask(PySession& s, const Turn& turn, const Settings& params, const std::optional<std::string>& kv) {
  const GenerationOptions options = options_of(params, s.text());
  const AskOptions how = how_of(params, kv);
  return s.run(
      [&](Session& session, SignalCheck& signals) { return session.ask(turn, options, how, callbacks_of(signals)); });
}

std::shared_ptr<PyStream> stream(std::shared_ptr<PySession> s, const Turn& turn, const Settings& params,
                                 const std::optional<std::string>& kv) {
  const GenerationOptions options = options_of(params, s->text());
  const AskOptions how = how_of(params, kv);
  TextStream stream = s->run([&](Session& session, SignalCheck&) { return session.stream(turn, options, how); });
  return std::make_shared<PyStream>(std::move(s), std::move(stream));
}

void bind_answer(nb::module_& m) {
  nb::class_<Answer>(m, "Answer", "One answer of a session.")
      .def_ro("text", &Answer::text)
      .def_ro("tokens", &Answer::tokens)
      .def_prop_ro("finish_reason", [](const Answer& a) { return std::string(finish_reason_name(a.stopped)); })
      .def_prop_ro("scores", [](const Answer& a) { return scored(a.scores); })
      .def_prop_ro("prompt_tokens", [](const Answer& a) { return a.stats.prompt_tokens; })
      .def_prop_ro("shared_tokens", [](const Answer& a) { return a.stats.shared_tokens; })
      .def_prop_ro("answer_tokens", [](const Answer& a) { return a.stats.answer_tokens; })
      .def_prop_ro("prefill_seconds", [](const Answer& a) { return a.stats.prefill_seconds; })
      .def_prop_ro("decode_seconds", [](const Answer& a) { return a.stats.decode_seconds; })
      .def_prop_ro("kv", [](const Answer& a) { return a.stats.method; });
}

}  // namespace

void bind_session(nb::module_& m) {
  bind_answer(m);
  nb::class_<Turn>(m, "Turn", "One turn of the user.")
      .def(
          "__init__",
          [](Turn* self, std::string document, std::string question, std::string system) {
            new (self) Turn{std::move(document), std::move(question), std::move(system)};
          },
          "document"_a, "question"_a, "system"_a);
  nb::class_<PyStream>(m, "SessionStream", "An answer of a session, piece by piece.")
      .def("next", &PyStream::next)
      .def("stop", &PyStream::stop)
      .def("close", &PyStream::close)
      .def("answer", &PyStream::answer);
  nb::class_<PySession>(m, "Session", "A conversation whose keys and values are kept.")
      .def(nb::new_(&make_session), "engine"_a, "kv"_a.none())
      .def_static("restore", &restore, "engine"_a, "path"_a)
      .def(
          "read",
          [](PySession& s, const Turn& turn) {
            s.run([&](Session& session, SignalCheck& signals) { session.read(turn, callbacks_of(signals)); });
          },
          "turn"_a)
      .def("ask", &ask, "turn"_a, "params"_a, "kv"_a.none())
      .def("stream", &stream, "turn"_a, "params"_a, "kv"_a.none())
      .def("fork",
           [](PySession& s) {
             return std::make_shared<PySession>(s.run([](Session& session, SignalCheck&) { return session.fork(); }),
                                                &s.text());
           })
      .def(
          "save",
          [](PySession& s, const std::string& path) {
            s.run([&](Session& session, SignalCheck&) { session.save(path); });
          },
          "path"_a)
      .def(
          "score",
          [](PySession& s, const std::string& text, std::int32_t top) {
            const Scores scores =
                s.run([&](Session& session, SignalCheck&) { return session.score(text, {.top = top}); });
            return scored(scores.tokens);
          },
          "text"_a, "top"_a)
      .def("logits",
           [](PySession& s) { return floats(s.run([](Session& session, SignalCheck&) { return session.logits(); })); })
      .def("tokens",
           [](PySession& s) { return s.run([](Session& session, SignalCheck&) { return session.tokens(); }); })
      .def(
          "count_tokens",
          [](PySession& s, const Turn& turn) {
            return s.run([&](Session& session, SignalCheck&) { return session.count_tokens(turn); });
          },
          "turn"_a);
}

}  // namespace mneme::python

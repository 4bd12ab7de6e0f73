#include "apps/mneme/run/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "apps/mneme/answer_writer.h"
#include "apps/mneme/interrupt.h"
#include "apps/mneme/progress_bar.h"
#include "apps/mneme/run/chat_command.h"
#include "apps/mneme/run/chat_line.h"
#include "apps/mneme/text_input.h"
#include "src/base/error.h"
#include "src/base/size32.h"

namespace mneme::cli {
namespace {

constexpr int kBadInput = 2;
constexpr std::int64_t kLongPrompt = 256;  // tokens; longer prompts show their progress
constexpr int kPressesThatEnd = 3;         // Ctrl-C during an answer; the first ends only that

class Chat {
 public:
  Chat(const LanguageModel& model, const ChatOptions& options, const RunReport& report)
      : model_(model), options_(options), report_(report), session_(std::make_unique<Session>(model)) {}

  void begin();
  int run(LineReader& lines);

 private:
  enum class Next { kGoOn, kQuit };

  Next execute(const ChatLine& line);
  void load(const std::string& path);
  void read(std::string text, const std::string& name);
  void ask(const std::string& question);
  void save(const std::string& path) const;
  void restore(const std::string& path);
  void reset();
  void report_stats() const;

  void reset_conversation();
  Turn turn_of(const std::string& question) const;
  int room_for_answer(const Turn& turn) const;
  template <typename... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) const {
    fmt::print(stderr, "{}\n", fmt::format(format, std::forward<Args>(args)...));
  }

  const LanguageModel& model_;
  const ChatOptions& options_;
  RunReport report_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Session> just_read_;  // as session_ was when its document had been read; none: never, or interrupted
  std::string document_name_;
  int turns_ = 0;
  bool seeded_ = false;         // the session has drawn from options_.generation.sampling.seed
  bool output_failed_ = false;  // the answer cannot be printed any more
};

// What one turn needs: Ctrl-C, a progress bar, and a place for the answer.
struct TurnOutput {
  explicit TurnOutput(bool progress) : bar(ProgressBar::mode_for_stderr(progress)) {}

  AskCallbacks callbacks() {
    AskCallbacks callbacks;
    callbacks.should_stop = [this] { return interrupt.interrupted(); };
    callbacks.on_progress = [this](std::string_view what, std::int64_t done, std::int64_t total) {
      if (total >= kLongPrompt) bar.show(what, done, total);
    };
    callbacks.on_text = [this](std::string_view text) {
      bar.clear();
      write([&] { answer.write(text); });
      return true;
    };
    return callbacks;
  }
  void end() {
    bar.clear();
    write([this] { answer.end_line(); });
  }
  void write(const auto& action) {
    try {
      action();
    } catch (const Error&) {
      failed = true;
      throw;
    }
  }

  const InterruptGuard interrupt{kPressesThatEnd};
  ProgressBar bar;
  AnswerWriter answer;
  bool failed = false;
};

void Chat::reset_conversation() {
  just_read_.reset();
  session_ = std::make_unique<Session>(model_);
  document_name_.clear();
  turns_ = 0;
  seeded_ = false;
  report_.answer = {};
}

void Chat::load(const std::string& path) {
  std::string text = without_last_line_ends(read_text(path));
  if (text.empty()) fail(ErrorKind::kRequest, "{} is empty: expected a document", path);
  const bool forgets = !session_->tokens().empty();
  read(std::move(text), path);
  if (forgets) note("A new session: what was there before is forgotten.");
}

// The session stays as it is where the document cannot be read.
void Chat::read(std::string text, const std::string& name) {
  auto fresh = std::make_unique<Session>(model_);
  bool stopped = false;
  {
    TurnOutput output(options_.progress);
    fresh->read({.document = std::move(text), .question = "", .system = options_.system}, output.callbacks());
    stopped = output.interrupt.interrupted();
  }
  reset_conversation();
  session_ = std::move(fresh);
  document_name_ = name;
  note("{}: {} tokens{}", name, grouped(session_->tokens().size()),
       stopped ? "; stopped, the rest is read with the first question" : "");
  if (!stopped) just_read_ = std::make_unique<Session>(session_->fork());
}

Turn Chat::turn_of(const std::string& question) const {
  Turn turn{.document = "", .question = question, .system = ""};
  if (session_->tokens().empty()) turn.system = options_.system;
  return turn;
}

// Errors  kRequest: none at all.
int Chat::room_for_answer(const Turn& turn) const {
  const std::int64_t context = report_.engine.context;
  const std::int64_t before = session_->tokens().size();
  const std::int64_t room = context - before - session_->count_tokens(turn, options_.how);
  if (room < 1) {
    fail(
        ErrorKind::kRequest,
        "the context of {} tokens is full: {} are there, and the question leaves no room for an answer: /reset forgets "
        "questions and answers, --max-model-len makes more room",
        context, before);
  }
  return count32(std::min<std::int64_t>(room, options_.max_tokens.value_or(kDefaultMaxTokens)));
}

void Chat::ask(const std::string& question) {
  expect_text("the question", question);
  const Turn turn = turn_of(question);
  GenerationOptions generation = options_.generation;
  generation.max_tokens = room_for_answer(turn);
  if (seeded_) generation.sampling.seed.reset();  // goes on with the numbers of the turn before
  TurnOutput output(options_.progress);
  try {
    report_.answer = session_->ask(turn, generation, options_.how, output.callbacks());
    output.end();
  } catch (...) {
    output_failed_ = output.failed;
    throw;
  }
  seeded_ = true;
  ++turns_;
  report_.peak_memory_bytes = peak_memory_bytes();
  if (report_.answer.stopped == StopReason::kCancelled) note("(stopped)");
  if (options_.stats) fmt::print(stderr, "{}", stats_text(report_));
}

void Chat::save(const std::string& path) const {
  session_->save(path);
  note("Saved to {}: {} tokens", path, grouped(session_->tokens().size()));
}

// The session stays as it is where the file is no good.
void Chat::restore(const std::string& path) {
  const bool document_waits = saved_session(path).document_waits;
  auto restored = std::make_unique<Session>(Session::restore(model_, path));
  reset_conversation();
  session_ = std::move(restored);
  document_name_ = path;
  seeded_ = !options_.generation.sampling.seed;
  if (document_waits) just_read_ = std::make_unique<Session>(session_->fork());
  note("{}: {} tokens", path, grouped(session_->tokens().size()));
}

void Chat::reset() {
  if (just_read_ == nullptr) {
    const bool had_document = !document_name_.empty();
    reset_conversation();
    note("{}", had_document ? "A new session: the document is forgotten too; /load reads it again." : "A new session.");
    return;
  }
  session_ = std::make_unique<Session>(just_read_->fork());
  turns_ = 0;
  seeded_ = false;
  report_.answer = {};
  note("Questions and answers are forgotten; {} is there.", document_name_);
}

void Chat::report_stats() const {
  note("{} of {} tokens of context in use; {} question{}", grouped(session_->tokens().size()),
       grouped(report_.engine.context), turns_, turns_ == 1 ? "" : "s");
  if (!document_name_.empty()) note("document {}", document_name_);
  if (turns_ == 0) return;
  note("the last question: {} tokens computed, {} kept from before", grouped(report_.answer.stats.prompt_tokens),
       grouped(report_.answer.stats.shared_tokens));
  fmt::print(stderr, "{}", stats_text(report_));
}

Chat::Next Chat::execute(const ChatLine& line) {
  switch (line.kind) {
    case ChatLine::Kind::kNothing:
      break;
    case ChatLine::Kind::kQuestion:
      ask(line.text);
      break;
    case ChatLine::Kind::kLoad:
      load(line.text);
      break;
    case ChatLine::Kind::kSave:
      save(line.text);
      break;
    case ChatLine::Kind::kRestore:
      restore(line.text);
      break;
    case ChatLine::Kind::kStats:
      report_stats();
      break;
    case ChatLine::Kind::kReset:
      reset();
      break;
    case ChatLine::Kind::kHelp:
      fmt::print(stderr, "{}", chat_help());
      break;
    case ChatLine::Kind::kQuit:
      return Next::kQuit;
    case ChatLine::Kind::kWrong:
      fail(ErrorKind::kRequest, "{}", line.text);
  }
  return Next::kGoOn;
}

void Chat::begin() {
  if (!options_.session.empty()) restore(options_.session);
  if (!options_.document.empty()) read(options_.document, options_.document_name);
  if (!options_.question.empty()) ask(options_.question);
}

int Chat::run(LineReader& lines) {
  int code = 0;
  bool asked_to_go = false;  // by one Ctrl-C
  std::string entry;
  for (;;) {
    const LineReader::End end = next_entry(lines, entry);
    if (end == LineReader::End::kEnd) break;
    if (end == LineReader::End::kInterrupt) {
      if (std::exchange(asked_to_go, true)) {
        code = kInterrupted;
        break;
      }
      note("Ctrl-C once more, Ctrl-D or /quit ends the program.");
      continue;
    }
    asked_to_go = false;
    try {
      if (execute(parse_chat_line(entry)) == Next::kQuit) break;
    } catch (const Error& e) {
      if (output_failed_ || e.kind() == ErrorKind::kDevice) throw;  // a device that failed fails at every later call
      note("mneme: error: {}", e.what());
      if (!lines.interactive()) code = kBadInput;
    }
  }
  if (!options_.save_path.empty() && !session_->tokens().empty()) save(options_.save_path);
  return code;
}

}  // namespace

int chat(const LanguageModel& model, const ChatOptions& options, const RunReport& report) {
  const std::unique_ptr<LineReader> lines =
      make_line_reader(options.history ? history_path() : std::filesystem::path());
  // Between turns Ctrl-C does not end the program either, so that a file that is being saved gets whole.
  const auto ignore = lines->interactive() ? std::make_unique<InterruptGuard>(InterruptGuard::kNever) : nullptr;
  Chat chat(model, options, report);
  chat.begin();
  if (lines->interactive()) fmt::print(stderr, "Ask, or /help.\n");
  return chat.run(*lines);
}

}  // namespace mneme::cli

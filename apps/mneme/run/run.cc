// mneme run: a prompt in, an answer out.
#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "apps/mneme/answer_writer.h"
#include "apps/mneme/commands.h"
#include "apps/mneme/engine_options.h"
#include "apps/mneme/interrupt.h"
#include "apps/mneme/kv_options.h"
#include "apps/mneme/model_source.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "apps/mneme/rank_options.h"
#include "apps/mneme/run/chat.h"
#include "apps/mneme/run/run_report.h"
#include "apps/mneme/text_input.h"
#include "mneme/mneme.h"
#include "src/base/atomic_file.h"
#include "src/base/error.h"
#include "src/base/seconds.h"
#include "src/base/size32.h"
#include "src/engine/kv_method.h"

namespace mneme::cli {
namespace {

struct PromptOptions {
  std::optional<std::string> text, file, question, question_span;
  std::string system, chat_template;
  bool raw = false, special = false;
  std::string question_path = "prefill";

  AskOptions ask() const {
    return {.framing = raw ? Framing::kRaw : Framing::kChat,
            .special = special ? SpecialTokens::kParsed : SpecialTokens::kAsText,
            .question = question_path == "decode" ? QuestionPath::kDecode : QuestionPath::kPrefill};
  }
};

struct SessionOptions {
  std::string path, save_path;  // empty: a new session; not saved
  bool chat = false, no_history = false;
};

struct OutputOptions {
  bool stats = false, json = false, no_progress = false;
};

struct RunOptions {
  ModelSource model;
  PromptOptions prompt;
  SessionOptions session;
  std::optional<int> max_tokens;
  GenerationOptions generation;
  EngineOptions engine;
  RankOptions ranks;
  bool kv_dtype_given = false;
  bool no_pin = false;
  OutputOptions output;
};

// A terminal on both sides and no question: start a chat.
bool wants_chat(const RunOptions& o) {
  if (o.session.chat) return true;
  return !o.prompt.text && !o.prompt.question && !o.prompt.raw && !o.output.json && stdin_is_terminal() &&
         stdout_is_terminal();
}

// What the command line says about the first turn of a chat; standard input is where its questions come from.
ChatOptions chat_options(const RunOptions& o) {
  if (o.prompt.raw || o.output.json) fail(ErrorKind::kOption, "--{}: not in a chat", o.prompt.raw ? "raw" : "json");
  if (o.prompt.question_span) fail(ErrorKind::kOption, "--question-span: not in a chat");
  if (o.prompt.file && *o.prompt.file == "-")
    fail(ErrorKind::kOption, "--file -: in a chat, questions are read from standard input");
  ChatOptions chat{.question = o.prompt.question.value_or(""),
                   .system = o.prompt.system,
                   .session = o.session.path,
                   .generation = o.generation,
                   .max_tokens = o.max_tokens,
                   .how = o.prompt.ask(),
                   .stats = o.output.stats,
                   .progress = !o.output.no_progress,
                   .history = !o.session.no_history,
                   .save_path = o.session.save_path};
  expect_text("--system", o.prompt.system);
  expect_text("--ask", chat.question);
  if (o.prompt.text) expect_text("--prompt", *o.prompt.text);
  if (o.prompt.file) chat.document_name = *o.prompt.file;
  if (o.prompt.text) chat.document_name = "--prompt";
  if (o.prompt.file || o.prompt.text) {
    chat.document = without_last_line_ends(o.prompt.text ? *o.prompt.text : read_text(*o.prompt.file));
    if (chat.document.empty()) fail(ErrorKind::kRequest, "{} is empty: expected a document", chat.document_name);
  }
  if (!chat.document.empty() && !o.session.path.empty()) {
    fail(ErrorKind::kOption, "--session goes on with the document that was read then: no other one can come with it");
  }
  return chat;
}

Turn turn_of(const PromptOptions& prompt) {
  Turn turn;
  if (prompt.question) {
    expect_text("--ask", *prompt.question);
    turn.question = *prompt.question;
  }
  expect_text("--system", prompt.system);
  turn.system = prompt.system;
  if (prompt.text) {
    expect_text("--prompt", *prompt.text);
    (prompt.question ? turn.document : turn.question) = *prompt.text;
    return turn;
  }
  if (!prompt.file && stdin_is_terminal()) {
    if (prompt.question) return turn;
    fail(ErrorKind::kOption,
         "a prompt is needed: -p TEXT, -f FILE, -q QUESTION, text on standard input, or --chat to talk");
  }
  const std::string path = prompt.file.value_or("-");
  turn.document = read_text(path);
  const bool optional = !prompt.file && prompt.question;  // a question alone, with nothing on standard input
  if (turn.document.empty() && !optional) {
    fail(ErrorKind::kRequest, "{} is empty: expected a prompt", path == "-" ? "standard input" : path);
  }
  if (!prompt.question && path != "-" && !prompt.raw && stdin_is_pipe())
    turn.question = without_last_line_ends(read_text("-"));
  if (!turn.question.empty()) turn.document = without_last_line_ends(std::move(turn.document));
  return turn;
}

// The first place of --question-span in what the prompt says.
std::optional<std::pair<std::size_t, std::size_t>> span_of(const PromptOptions& prompt, const Turn& turn) {
  if (!prompt.question_span) return std::nullopt;
  expect_text("--question-span", *prompt.question_span);
  const std::string& text = turn.document.empty() ? turn.question : turn.document;
  const std::size_t at = text.find(*prompt.question_span);
  if (at == std::string::npos) fail(ErrorKind::kRequest, "--question-span: the prompt has no such words");
  return std::pair(at, at + prompt.question_span->size());
}

ModelFile open_model(RunOptions& options) {
  options.model.path = model_file(options.model, !options.output.no_progress);
  ModelFile file(options.model.path);
  if (!options.prompt.chat_template.empty()) file.set_chat_template(read_template(options.prompt.chat_template));
  return file;
}

// The context that this run needs, and how long its answer may become.
void fit_context(const ModelFile& file, std::int64_t added, RunOptions& options) {
  const bool saves = !options.session.path.empty() || !options.session.save_path.empty();
  const std::int64_t before = options.session.path.empty() ? 0 : saved_session(options.session.path).tokens;
  const std::int64_t prompt = before + added;
  const std::int64_t made_for = file.info().context;
  const std::int64_t context = options.engine.context > 0 ? options.engine.context : made_for;
  const std::int64_t wanted = options.max_tokens.value_or(1);
  if (prompt + wanted > context) {
    const std::string answer =
        options.max_tokens ? fmt::format("{} of the answer (--max-tokens)", wanted) : "at least one of the answer";
    const std::string hint = options.engine.context > 0 && context < made_for
                                 ? fmt::format("the model was made for {}", made_for)
                                 : "which is what the model was made for; beyond it answers get worse";
    fail(ErrorKind::kRequest,
         "the prompt has {} tokens and needs {}; the context has room for {}: shorten the prompt or raise "
         "--max-model-len ({})",
         prompt, answer, context, hint);
  }
  options.generation.max_tokens =
      options.max_tokens.value_or(count32(std::min<std::int64_t>(kDefaultMaxTokens, context - prompt)));
  // A session that is to go on another time keeps all that the model can take.
  if (options.engine.context == 0 && !saves) options.engine.context = prompt + options.generation.max_tokens;
}

// Starts the model, and notes what is known of it then.
LanguageModel start_model(ModelFile file, const RunOptions& options, ProgressBar& bar, RunReport& report) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  report.model_path = options.model.path;
  report.model = file.info();
  LanguageModel model(std::move(file), options.engine,
                      [&bar](std::string_view what, auto done, auto total) { bar.show(what, done, total); });
  report.load_seconds = seconds_since(start);
  report.engine = model.options();
  return model;
}

int run_chat(RunOptions options) {
  const ChatOptions chat_with = chat_options(options);
  options.engine.max_sequences = 2;  // the conversation, and its document alone for /reset
  RunReport report;
  ProgressBar bar(ProgressBar::mode_for_stderr(!options.output.no_progress));
  ModelFile file = open_model(options);
  const LanguageModel model = start_model(std::move(file), options, bar, report);
  bar.clear();
  return chat(model, chat_with, report);
}

int run(RunOptions options) {
  expect_model(options.model);
  expect_method(options.engine.kv);
  std::string note;
  const Recipe recipe = recipe_of(options.engine.kv, &note);
  options.engine.pin_threads = !options.no_pin;
  const std::unique_ptr<RankGroup> ranks = join_ranks(options.ranks, options.engine);
  if (ranks && !ranks->leads()) return follow_leader(*ranks, model_file(options.model, false), options.engine);
  say_note(note);
  say_note(weak_default(recipe));
  // Keys and values of a session are as they were stored.
  if (!options.session.path.empty() && !options.kv_dtype_given)
    options.engine.kv_cache_dtype = saved_session(options.session.path).kv_cache_dtype;
  if (!options.session.save_path.empty()) expect_writable(options.session.save_path);  // before minutes of computing
  if (wants_chat(options)) return run_chat(std::move(options));
  const Turn turn = turn_of(options.prompt);
  ModelFile file = open_model(options);
  AskOptions how = options.prompt.ask();
  how.question_span = span_of(options.prompt, turn);
  const PreparedTurn first = file.prepare(turn, how);
  fit_context(file, first.n_tokens(), options);
  options.engine.max_sequences = 1;

  ProgressBar bar(ProgressBar::mode_for_stderr(!options.output.no_progress));
  RunReport report;
  const LanguageModel model = start_model(std::move(file), options, bar, report);

  const InterruptGuard interrupt;
  AnswerWriter out;
  AskCallbacks callbacks;
  callbacks.should_stop = [&] { return interrupt.interrupted(); };
  callbacks.on_progress = [&](std::string_view what, auto done, auto total) { bar.show(what, done, total); };
  callbacks.on_text = [&](std::string_view text) {
    bar.clear();
    if (!options.output.json) out.write(text);
    return true;
  };
  Session session = options.session.path.empty() ? Session(model) : Session::restore(model, options.session.path);
  bar.show("prefill, tokens", 0, first.n_tokens());
  report.answer = options.session.path.empty() ? session.ask(first, options.generation, callbacks)
                                               : session.ask(turn, options.generation, how, callbacks);
  bar.clear();
  report.peak_memory_bytes = peak_memory_bytes();
  if (options.output.json) out.write(report_json(report));
  out.end_line();
  if (options.output.stats) fmt::print(stderr, "{}", stats_text(report));
  if (!options.session.save_path.empty()) session.save(options.session.save_path);
  return report.answer.stopped == StopReason::kCancelled ? kInterrupted : 0;
}

void add_prompt_options(CLI::App& c, RunOptions& o) {
  auto* prompt = c.add_option("-p,--prompt", o.prompt.text, "The prompt, or with -q the document");
  auto* file = c.add_option("-f,--file", o.prompt.file,
                            "Read the prompt or document from a UTF-8 file; - is standard input (the default)");
  file->excludes(prompt);
  auto* question =
      c.add_option("-q,--ask", o.prompt.question,
                   "The question, appended after two empty lines; with -f it may come from standard input");
  auto* span = c.add_option("--question-span", o.prompt.question_span,
                            "The part of the prompt that asks the question, for methods that prefill by it (actqkv)");
  auto* system = c.add_option("--system", o.prompt.system, "System message");
  auto* raw = c.add_flag("--raw", o.prompt.raw, "Do not apply the chat template");
  auto* special = c.add_flag("--special", o.prompt.special, "Parse special tokens that the prompt spells out");
  special->needs(raw);
  auto* chat_template = c.add_option(
      "--chat-template", o.prompt.chat_template,
      "Use this Jinja chat template instead of the model's: a file, the template itself, or the name of one of the "
      "model's templates (mneme inspect lists them)");
  chat_template->type_name("FILE|TEXT|NAME")->check(not_empty())->excludes(raw)->group("Prompt");
  for (CLI::Option* text : {prompt, file, question, span}) text->type_name("TEXT")->check(not_empty());
  file->type_name("FILE");
  for (CLI::Option* option : {prompt, file, question, span, system, raw, special}) option->group("Prompt");
}

void add_answer_options(CLI::App& c, RunOptions& o) {
  const auto group = [](CLI::Option* option) { option->group("Answer"); };
  group(c.add_option("-n,--max-tokens", o.max_tokens,
                     fmt::format("Longest answer (default {}, or what the context leaves)", kDefaultMaxTokens))
            ->type_name("TOKENS")
            ->transform(tokens(1, std::numeric_limits<int>::max())));
  group(c.add_option("--stop", o.generation.stop, "Stop string; repeat for several")
            ->type_name("TEXT")
            ->allow_extra_args(false)
            ->check(not_empty()));
  group(c.add_flag("--ignore-end", o.generation.ignore_end, "Ignore end-of-turn tokens (for measurements)"));
}

void add_sampling_options(CLI::App& c, RunOptions& o) {
  SamplingOptions& s = o.generation.sampling;
  constexpr double kAny = std::numeric_limits<double>::infinity();
  constexpr double kMaxFloat = std::numeric_limits<float>::max();
  const auto group = [](CLI::Option* option) { option->group("Sampling")->capture_default_str(); };
  group(c.add_option("--temperature,--temp", s.temperature,
                     "Sampling temperature; 0: greedy (mneme serve: 1 unless a request sets it)")
            ->check(number(0, kMaxFloat)));
  group(c.add_option("-k,--top-k", s.top_k, "Sample from the k likeliest tokens; 0: all")
            ->type_name("TOKENS")
            ->transform(tokens(0, std::numeric_limits<int>::max())));
  group(c.add_option("--top-p", s.top_p, "Sample from the fewest tokens whose probabilities reach this sum; 1: all")
            ->check(number(0, 1)));
  group(c.add_option("--min-p", s.min_p, "Drop tokens below this share of the likeliest token's probability; 0: none")
            ->check(number(0, 1)));
  group(c.add_option("--repetition-penalty,--repeat-penalty", s.repetition_penalty,
                     "Divide logits of tokens that occur in prompt or answer; 1: off")
            ->check(number(0, kMaxFloat)));
  group(
      c.add_option("--presence-penalty", s.presence_penalty, "Subtract from logits of tokens that occur in the answer")
          ->check(number(-kAny, kAny)));
  group(c.add_option("--frequency-penalty", s.frequency_penalty, "Subtract per occurrence in the answer")
            ->check(number(-kAny, kAny)));
  c.add_option("-s,--seed", s.seed, "Seed of the sampler (default: random)")->type_name("N")->group("Sampling");
}

void add_engine_options(CLI::App& c, RunOptions& o) {
  EngineOptions& e = o.engine;
  const auto group = [](CLI::Option* option) { option->group(kEngineGroup); };
  add_device_option(c, e);
  group(c.add_option("-c,--max-model-len,--ctx-size", e.context,
                     "Context length: prompt and answer (default: what this run needs)")
            ->type_name("TOKENS")
            ->transform(tokens(1, std::numeric_limits<std::int32_t>::max())));
  add_kv_room_options(c, e);
  add_machine_options(c, e, o.no_pin);
  group(c.add_option("-b,--max-num-batched-tokens", e.max_batched_tokens,
                     "Tokens of a prefill chunk; larger is faster and takes more memory")
            ->type_name("TOKENS")
            ->capture_default_str()
            ->transform(tokens(1, 1 << 20)));
  group(c.add_option("--question", o.prompt.question_path,
                     "Read the question by prefill, with the document, or by decode steps, one token each")
            ->type_name("PATH")
            ->capture_default_str()
            ->check(one_of({"prefill", "decode"})));
  add_deterministic_option(c, e);
}

void add_method_options(CLI::App& c, RunOptions& o) {
  add_rank_options(c, o.ranks);
  add_kv_options(c, o.engine.kv);
  c.add_option("--audit", o.engine.audit_every, "Compute true attention too at every n-th step, for --stats; 0: never")
      ->type_name("STEPS")
      ->capture_default_str()
      ->check(whole_number(0, 1 << 30))
      ->group("KV cache");
}

void add_session_options(CLI::App& c, RunOptions& o) {
  auto* session = c.add_option("--session", o.session.path, "Restore a saved session; none of it is recomputed");
  auto* save = c.add_option("--save-session", o.session.save_path, "Save the session at the end");
  auto* chat = c.add_flag("--chat", o.session.chat,
                          "Chat: read questions from standard input, one a line (default on a terminal)");
  auto* history = c.add_flag("--no-history", o.session.no_history, "Do not save the chat's input lines");
  for (CLI::Option* file : {session, save}) file->type_name("FILE")->check(not_empty());
  for (CLI::Option* option : {session, save, chat, history}) option->group("Sessions");
}

}  // namespace

void add_run(CLI::App& app, int& code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* c = app.add_subcommand("run", "Answer a prompt, or a question about a document");
  c->add_option("-m,--model", options->model.path, "GGUF file or Hugging Face folder")
      ->type_name("PATH")
      ->group("Model");
  add_hf_option(*c, options->model)->group("Model");
  add_prompt_options(*c, *options);
  add_answer_options(*c, *options);
  add_sampling_options(*c, *options);
  add_session_options(*c, *options);
  add_engine_options(*c, *options);
  add_method_options(*c, *options);
  c->add_flag("--stats", options->output.stats, "Print tokens, seconds, tokens/s and memory to standard error")
      ->group("Output");
  c->add_flag("--json", options->output.json, "Print one JSON object: answer and statistics")->group("Output");
  c->add_flag("--no-progress", options->output.no_progress,
              "No progress bar, and no line every 10 s without a terminal")
      ->group("Output");
  c->footer(
      "Only the answer goes to standard output. Ctrl-C ends the answer; twice, the program.\n"
      "Without a prompt on a terminal it starts a chat; /help lists its commands.\n"
      "Example: mneme run -m models/needle-27m-q8_0.gguf -f book.txt -q \"What is the secret number of "
      "silver-harbour?\"");
  const CLI::Option* kv_dtype = c->get_option("--kv-cache-dtype");
  c->callback([options, kv_dtype, &code] {
    options->kv_dtype_given = kv_dtype->count() > 0;
    code = run(*options);
  });
}

}  // namespace mneme::cli

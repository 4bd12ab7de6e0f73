// mneme run: a prompt in, an answer out.
#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "mneme/mneme.h"
#include "src/base/error.h"
#include "src/base/new_file.h"
#include "src/cli/answer_writer.h"
#include "src/cli/chat.h"
#include "src/cli/commands.h"
#include "src/cli/interrupt.h"
#include "src/cli/kv_options.h"
#include "src/cli/options.h"
#include "src/cli/progress_bar.h"
#include "src/cli/run_report.h"
#include "src/cli/text_input.h"

namespace mneme::cli {
namespace {

struct RunOptions {
  std::string model;
  std::optional<std::string> prompt, file, question, question_span;
  std::string system, chat_template;
  bool raw = false, special = false;
  std::optional<int> max_tokens;
  GenerationOptions generation;
  std::string question_path = "prefill";
  EngineOptions engine;
  bool kv_dtype_given = false;
  bool no_pin = false;
  std::string session, save_session;
  bool chat = false, no_history = false;
  bool stats = false, json = false, no_progress = false;

  AskOptions ask() const {
    return {.framing = raw ? Framing::kRaw : Framing::kChat,
            .special = special ? SpecialTokens::kParsed : SpecialTokens::kAsText,
            .question = question_path == "decode" ? QuestionPath::kDecode : QuestionPath::kPrefill};
  }
};

// A terminal on both sides and nothing asked: somebody wants to talk.
bool wants_chat(const RunOptions& o) {
  if (o.chat) return true;
  return !o.prompt && !o.question && !o.raw && !o.json && stdin_is_terminal() && stdout_is_terminal();
}

// What the command line says about the first turn of a chat; standard input is where its questions come from.
ChatOptions chat_options(const RunOptions& o) {
  if (o.raw || o.json) fail(ErrorKind::kOption, "--{}: not in a chat", o.raw ? "raw" : "json");
  if (o.question_span) fail(ErrorKind::kOption, "--question-span: not in a chat");
  if (o.file && *o.file == "-") fail(ErrorKind::kOption, "--file -: in a chat, standard input brings the questions");
  ChatOptions chat{.question = o.question.value_or(""),
                   .system = o.system,
                   .session = o.session,
                   .generation = o.generation,
                   .max_tokens = o.max_tokens,
                   .how = o.ask(),
                   .stats = o.stats,
                   .progress = !o.no_progress,
                   .history = !o.no_history,
                   .save_path = o.save_session};
  expect_text("--system", o.system);
  expect_text("--ask", chat.question);
  if (o.prompt) expect_text("--prompt", *o.prompt);
  if (o.file) chat.document_name = *o.file;
  if (o.prompt) chat.document_name = "--prompt";
  if (o.file || o.prompt) {
    chat.document = without_last_line_ends(o.prompt ? *o.prompt : read_text(*o.file));
    if (chat.document.empty()) fail(ErrorKind::kRequest, "{} is empty: expected a document", chat.document_name);
  }
  if (!chat.document.empty() && !o.session.empty()) {
    fail(ErrorKind::kOption, "--session goes on with the document that was read then: no other one can come with it");
  }
  return chat;
}

Turn turn_of(const RunOptions& options) {
  Turn turn;
  if (options.question) {
    expect_text("--ask", *options.question);
    turn.question = *options.question;
  }
  expect_text("--system", options.system);
  turn.system = options.system;
  if (options.prompt) {
    expect_text("--prompt", *options.prompt);
    (options.question ? turn.document : turn.question) = *options.prompt;
    return turn;
  }
  if (!options.file && stdin_is_terminal()) {
    if (options.question) return turn;
    fail(ErrorKind::kOption,
         "a prompt is needed: -p TEXT, -f FILE, -q QUESTION, text on standard input, or --chat to talk");
  }
  const std::string path = options.file.value_or("-");
  turn.document = read_text(path);
  const bool optional = !options.file && options.question;  // a question alone, with nothing on standard input
  if (turn.document.empty() && !optional) {
    fail(ErrorKind::kRequest, "{} is empty: expected a prompt", path == "-" ? "standard input" : path);
  }
  if (options.question) turn.document = without_last_line_ends(std::move(turn.document));
  return turn;
}

// The first place of --question-span in what the prompt says.
std::optional<std::pair<std::size_t, std::size_t>> span_of(const RunOptions& options, const Turn& turn) {
  if (!options.question_span) return std::nullopt;
  expect_text("--question-span", *options.question_span);
  const std::string& text = turn.document.empty() ? turn.question : turn.document;
  const std::size_t at = text.find(*options.question_span);
  if (at == std::string::npos) fail(ErrorKind::kRequest, "--question-span: the prompt has no such words");
  return std::pair(at, at + options.question_span->size());
}

ModelFile open_model(const RunOptions& options) {
  ModelFile file(options.model);
  if (!options.chat_template.empty()) file.set_chat_template(read_template(options.chat_template));
  return file;
}

// The context that this run needs, and how long its answer may become.
void fit_context(const ModelFile& file, const Turn& turn, RunOptions& options) {
  const bool saves = !options.session.empty() || !options.save_session.empty();
  const std::int64_t before = options.session.empty() ? 0 : saved_session(options.session).tokens;
  const std::int64_t prompt = before + file.count_tokens(turn, options.ask());
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
      options.max_tokens.value_or(static_cast<int>(std::min<std::int64_t>(kDefaultMaxTokens, context - prompt)));
  // A session that is to go on another time keeps all that the model can take.
  if (options.engine.context == 0 && !saves) options.engine.context = prompt + options.generation.max_tokens;
}

// Starts the model, and notes what is known of it then.
LanguageModel start_model(ModelFile file, const RunOptions& options, ProgressBar& bar, RunReport& report) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  report.model_path = options.model;
  report.model = file.info();
  LanguageModel model(std::move(file), options.engine,
                      [&bar](std::string_view what, auto done, auto total) { bar.show(what, done, total); });
  report.load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.engine = model.options();
  return model;
}

int run_chat(RunOptions options) {
  const ChatOptions chat_with = chat_options(options);
  options.engine.max_sequences = 2;  // the conversation, and its document alone for /reset
  RunReport report;
  ProgressBar bar(ProgressBar::mode_for_stderr(!options.no_progress));
  const LanguageModel model = start_model(open_model(options), options, bar, report);
  bar.clear();
  return chat(model, chat_with, report);
}

int run(RunOptions options) {
  options.engine.pin_threads = !options.no_pin;
  // Keys and values of a session are as they were stored.
  if (!options.session.empty() && !options.kv_dtype_given)
    options.engine.kv_cache_dtype = saved_session(options.session).kv_cache_dtype;
  if (!options.save_session.empty()) expect_writable(options.save_session);  // before minutes of computing
  if (wants_chat(options)) return run_chat(std::move(options));
  const Turn turn = turn_of(options);
  ModelFile file = open_model(options);
  fit_context(file, turn, options);
  options.engine.max_sequences = 1;

  ProgressBar bar(ProgressBar::mode_for_stderr(!options.no_progress));
  RunReport report;
  AskOptions how = options.ask();
  how.question_span = span_of(options, turn);
  const std::int64_t prompt_tokens = file.count_tokens(turn, how);
  const LanguageModel model = start_model(std::move(file), options, bar, report);

  const InterruptGuard interrupt;
  AnswerWriter out;
  AskCallbacks callbacks;
  callbacks.should_stop = [&] { return interrupt.interrupted(); };
  callbacks.on_progress = [&](std::string_view what, auto done, auto total) { bar.show(what, done, total); };
  callbacks.on_text = [&](std::string_view text) {
    bar.clear();
    if (!options.json) out.write(text);
    return true;
  };
  Session session = options.session.empty() ? Session(model) : Session::restore(model, options.session);
  bar.show("prefill, tokens", 0, prompt_tokens);
  report.answer = session.ask(turn, options.generation, how, callbacks);
  bar.clear();
  report.peak_memory_bytes = peak_memory_bytes();
  if (options.json) out.write(report_json(report));
  out.end_line();
  if (options.stats) fmt::print(stderr, "{}", stats_text(report));
  if (!options.save_session.empty()) session.save(options.save_session);
  return report.answer.stopped == StopReason::kCancelled ? kInterrupted : 0;
}

void add_prompt_options(CLI::App& c, RunOptions& o) {
  auto* prompt = c.add_option("-p,--prompt", o.prompt, "The prompt; with -q the document");
  auto* file = c.add_option("-f,--file", o.file, "Read it from a file (UTF-8 text; - is standard input, the default)");
  file->excludes(prompt);
  auto* question = c.add_option("-q,--ask", o.question, "Question that follows the prompt after two empty lines");
  auto* span = c.add_option("--question-span", o.question_span,
                            "Words of the prompt that say what is asked, for methods that read prompts by it (actqkv)");
  auto* system = c.add_option("--system", o.system, "System text, before everything else");
  auto* raw = c.add_flag("--raw", o.raw, "The prompt as it is, without the model's chat framing");
  auto* special = c.add_flag("--special", o.special, "Special tokens written in the prompt are those tokens");
  special->needs(raw);
  auto* chat_template = c.add_option("--chat-template", o.chat_template,
                                     "Frame turns by this chat template (Jinja) instead of the model's");
  chat_template->type_name("FILE|TEXT")->check(not_empty())->excludes(raw)->group("Prompt");
  for (CLI::Option* text : {prompt, file, question, span}) text->type_name("TEXT")->check(not_empty());
  file->type_name("FILE");
  for (CLI::Option* option : {prompt, file, question, span, system, raw, special}) option->group("Prompt");
}

void add_answer_options(CLI::App& c, RunOptions& o) {
  const auto group = [](CLI::Option* option) { option->group("Answer"); };
  group(c.add_option("-n,--max-tokens", o.max_tokens,
                     fmt::format("Longest answer (default {}, or what the context leaves)", kDefaultMaxTokens))
            ->type_name("TOKENS")
            ->check(whole_number(1, std::numeric_limits<int>::max())));
  group(c.add_option("--stop", o.generation.stop, "End the answer before this text; may be given several times")
            ->type_name("TEXT")
            ->allow_extra_args(false)
            ->check(not_empty()));
  group(c.add_flag("--ignore-end", o.generation.ignore_end, "Go on after the model ends its turn (for measuring)"));
}

void add_sampling_options(CLI::App& c, RunOptions& o) {
  SamplingOptions& s = o.generation.sampling;
  constexpr double kAny = std::numeric_limits<double>::infinity();
  constexpr double kMaxFloat = std::numeric_limits<float>::max();
  const auto group = [](CLI::Option* option) { option->group("Sampling")->capture_default_str(); };
  group(c.add_option("--temperature,--temp", s.temperature, "0: always the likeliest token; higher: more varied")
            ->check(number(0, kMaxFloat)));
  group(c.add_option("-k,--top-k", s.top_k, "Only the k likeliest tokens; 0: all")
            ->type_name("TOKENS")
            ->check(whole_number(0, std::numeric_limits<int>::max())));
  group(c.add_option("--top-p", s.top_p, "Only the fewest tokens that are this likely together; 1: all")
            ->check(number(0, 1)));
  group(c.add_option("--min-p", s.min_p, "Only tokens at least this share as likely as the likeliest; 0: all")
            ->check(number(0, 1)));
  group(c.add_option("--repetition-penalty,--repeat-penalty", s.repetition_penalty,
                     "Divides the logits of tokens in prompt or answer; 1: none")
            ->check(number(0, kMaxFloat)));
  group(c.add_option("--presence-penalty", s.presence_penalty, "Taken from the logits of tokens in the answer, once")
            ->check(number(-kAny, kAny)));
  group(c.add_option("--frequency-penalty", s.frequency_penalty, "Taken from them every time the answer has the token")
            ->check(number(-kAny, kAny)));
  c.add_option("-s,--seed", s.seed, "Whole number; the same seed draws the same tokens (default: a new one each run)")
      ->type_name("N")
      ->group("Sampling");
}

void add_engine_options(CLI::App& c, RunOptions& o) {
  EngineOptions& e = o.engine;
  const auto group = [](CLI::Option* option) { option->group("Memory and speed"); };
  group(c.add_option("--device", e.device, "Where the model computes: cpu, or cuda, the first NVIDIA GPU")
            ->type_name("NAME")
            ->capture_default_str()
            ->check(one_of({"cpu", "cuda"})));
  group(c.add_option("-c,--max-model-len,--ctx-size", e.context,
                     "Longest prompt and answer together (default: what this run needs)")
            ->type_name("TOKENS")
            ->check(whole_number(1, std::numeric_limits<std::int32_t>::max())));
  group(c.add_option("--kv-store", e.kv_store,
                     "With --device cuda, where keys and values lie: device, host, or auto (host for methods that "
                     "select, and for "
                     "contexts that the device has no room for)")
            ->type_name("WHERE")
            ->capture_default_str()
            ->check(one_of({"auto", "device", "host"})));
  group(c.add_option("--kv-cache-dtype", e.kv_cache_dtype, "How keys and values are stored: bf16 or f16")
            ->type_name("TYPE")
            ->capture_default_str()
            ->check(one_of({"bf16", "f16"})));
  group(c.add_option("-t,--threads", e.threads, "Threads that compute (default: one per CPU)")
            ->check(whole_number(1, 1024)));
  group(c.add_flag("--no-pin", o.no_pin, "Let threads move between CPUs: better where other programs compute too"));
  group(c.add_option("--numa", e.numa, "With several memory nodes: none, distribute (over all), isolate (to one)")
            ->type_name("POLICY")
            ->capture_default_str()
            ->check(one_of({"none", "distribute", "isolate"})));
  group(c.add_option("-b,--max-num-batched-tokens", e.max_batched_tokens,
                     "Prompt tokens that are computed together: larger reads faster, takes more memory")
            ->type_name("TOKENS")
            ->capture_default_str()
            ->check(whole_number(1, 1 << 20)));
  group(c.add_option("--question", o.question_path,
                     "How the question is read: prefill, with the document; decode, one token a step as the answer")
            ->type_name("PATH")
            ->capture_default_str()
            ->check(one_of({"prefill", "decode"})));
  group(
      c.add_flag("--deterministic", e.deterministic, "Fixed tiles: the same rounding in every batch, a little slower"));
}

void add_method_options(CLI::App& c, RunOptions& o) {
  add_kv_options(c, o.engine.kv);
  c.add_option("--audit", o.engine.audit_every,
               "Every n-th step of the answer also computes the true attention, for --stats; 0: never")
      ->type_name("STEPS")
      ->capture_default_str()
      ->check(whole_number(0, 1 << 30))
      ->group("Keys and values");
}

void add_session_options(CLI::App& c, RunOptions& o) {
  auto* session = c.add_option("--session", o.session, "Go on with a saved session: nothing of it is computed anew");
  auto* save = c.add_option("--save-session", o.save_session, "Save the session at the end, to go on another time");
  auto* chat = c.add_flag("--chat", o.chat, "Questions from standard input, one a line (default on a terminal)");
  auto* history = c.add_flag("--no-history", o.no_history, "Do not remember the lines of a chat for the next one");
  for (CLI::Option* file : {session, save}) file->type_name("FILE")->check(not_empty());
  for (CLI::Option* option : {session, save, chat, history}) option->group("Sessions");
}

}  // namespace

void add_run(CLI::App& app, int& code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* c = app.add_subcommand("run", "Answer a prompt, or a question about a document");
  c->add_option("-m,--model", options->model, "A .gguf file, or the folder of a Hugging Face model")
      ->type_name("PATH")
      ->required()
      ->group("Model");
  add_prompt_options(*c, *options);
  add_answer_options(*c, *options);
  add_sampling_options(*c, *options);
  add_session_options(*c, *options);
  add_engine_options(*c, *options);
  add_method_options(*c, *options);
  c->add_flag("--stats", options->stats, "Tokens, seconds, tokens/s and memory, on standard error")->group("Output");
  c->add_flag("--json", options->json, "One JSON object with the answer and the statistics")->group("Output");
  c->add_flag("--no-progress", options->no_progress, "No progress bar (there is none without a terminal)")
      ->group("Output");
  c->footer(
      "The answer goes to standard output, alone. Ctrl-C ends the answer, twice the program.\n"
      "On a terminal, and without a question, it is a chat: /help lists its commands.\n"
      "Example: mneme run -m models/needle-27m-q8_0.gguf -f book.txt -q \"What is the secret number of "
      "silver-harbour?\"");
  const CLI::Option* kv_dtype = c->get_option("--kv-cache-dtype");
  c->callback([options, kv_dtype, &code] {
    options->kv_dtype_given = kv_dtype->count() > 0;
    code = run(*options);
  });
}

}  // namespace mneme::cli

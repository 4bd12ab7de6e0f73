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
#include "src/cli/answer_writer.h"
#include "src/cli/commands.h"
#include "src/cli/interrupt.h"
#include "src/cli/options.h"
#include "src/cli/progress_bar.h"
#include "src/cli/run_report.h"
#include "src/cli/text_input.h"

namespace mneme::cli {
namespace {

constexpr int kDefaultMaxTokens = 256;

struct RunOptions {
  std::string model;
  std::optional<std::string> prompt, file, question;
  std::string system;
  bool raw = false, special = false;
  std::optional<int> max_tokens;
  GenerationOptions generation;
  std::string question_path = "prefill";
  EngineOptions engine;
  bool no_pin = false;
  bool stats = false, json = false, no_progress = false;

  AskOptions ask() const {
    return {.framing = raw ? Framing::kRaw : Framing::kChat,
            .special = special ? SpecialTokens::kParsed : SpecialTokens::kAsText,
            .question = question_path == "decode" ? QuestionPath::kDecode : QuestionPath::kPrefill};
  }
};

// Line ends at the end of a document say nothing, and would stand between it and the question.
std::string without_last_line_ends(std::string text) {
  text.erase(text.find_last_not_of("\r\n") + 1);
  return text;
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
    fail(ErrorKind::kOption, "a prompt is needed: -p TEXT, -f FILE, -q QUESTION, or text on standard input");
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

// The context that this run needs, and how long its answer may become.
void fit_context(const ModelFile& file, const Turn& turn, RunOptions& options) {
  const std::int64_t prompt = file.count_tokens(turn, options.ask());
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
  if (options.engine.context == 0) options.engine.context = prompt + options.generation.max_tokens;
}

int run(RunOptions options) {
  using Clock = std::chrono::steady_clock;
  const Turn turn = turn_of(options);
  ModelFile file(options.model);
  fit_context(file, turn, options);
  options.engine.pin_threads = !options.no_pin;
  options.engine.max_sequences = 1;

  ProgressBar bar(ProgressBar::mode_for_stderr(!options.no_progress));
  const ProgressFn show = [&bar](std::string_view what, std::int64_t done, std::int64_t total) {
    bar.show(what, done, total);
  };
  RunReport report{.model_path = options.model, .model = file.info(), .engine = {}, .answer = {}};
  const std::int64_t prompt_tokens = file.count_tokens(turn, options.ask());
  const Clock::time_point start = Clock::now();
  const LanguageModel model(std::move(file), options.engine, show);
  report.load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.engine = model.options();

  const InterruptGuard interrupt;
  AnswerWriter out;
  AskCallbacks callbacks;
  callbacks.should_stop = [&] { return interrupt.interrupted(); };
  callbacks.on_progress = show;
  callbacks.on_text = [&](std::string_view text) {
    bar.clear();
    if (!options.json) out.write(text);
    return true;
  };
  bar.show("prefill, tokens", 0, prompt_tokens);
  Session session(model);
  report.answer = session.ask(turn, options.generation, options.ask(), callbacks);
  bar.clear();
  report.peak_memory_bytes = peak_memory_bytes();
  if (options.json) out.write(report_json(report));
  out.end_line();
  if (options.stats) fmt::print(stderr, "{}", stats_text(report));
  return report.answer.stopped == StopReason::kCancelled ? kInterrupted : 0;
}

void add_prompt_options(CLI::App& c, RunOptions& o) {
  auto* prompt = c.add_option("-p,--prompt", o.prompt, "The prompt; with -q the document");
  auto* file = c.add_option("-f,--file", o.file, "Read it from a file (UTF-8 text; - is standard input, the default)");
  file->excludes(prompt);
  auto* question = c.add_option("-q,--ask", o.question, "Question that follows the prompt after two empty lines");
  auto* system = c.add_option("--system", o.system, "System text, before everything else");
  auto* raw = c.add_flag("--raw", o.raw, "The prompt as it is, without the model's chat framing");
  auto* special = c.add_flag("--special", o.special, "Special tokens written in the prompt are those tokens");
  special->needs(raw);
  for (CLI::Option* text : {prompt, file, question}) text->type_name("TEXT")->check(not_empty());
  file->type_name("FILE");
  for (CLI::Option* option : {prompt, file, question, system, raw, special}) option->group("Prompt");
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
  group(c.add_option("-c,--max-model-len,--ctx-size", e.context,
                     "Longest prompt and answer together (default: what this run needs)")
            ->type_name("TOKENS")
            ->check(whole_number(1, std::numeric_limits<std::int32_t>::max())));
  group(c.add_option("--kv-cache-dtype", e.kv_cache_dtype, "How keys and values are stored: bf16 or f16")
            ->type_name("TYPE")
            ->capture_default_str()
            ->check(one_of({"bf16", "f16"})));
  group(c.add_option("-t,--threads", e.threads, "Threads that compute (default: one per CPU)")
            ->check(whole_number(1, 1024)));
  group(c.add_flag("--no-pin", o.no_pin, "Let threads move between CPUs: better where other programs compute too"));
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
  add_engine_options(*c, *options);
  c->add_flag("--stats", options->stats, "Tokens, seconds, tokens/s and memory, on standard error")->group("Output");
  c->add_flag("--json", options->json, "One JSON object with the answer and the statistics")->group("Output");
  c->add_flag("--no-progress", options->no_progress, "No progress bar (there is none without a terminal)")
      ->group("Output");
  c->footer(
      "The answer goes to standard output, alone. Ctrl-C ends the answer, twice the program.\n"
      "Example: mneme run -m models/needle-27m-q8_0.gguf -f book.txt -q \"What is the secret number of "
      "silver-harbour?\"");
  c->callback([options, &code] { code = run(*options); });
}

}  // namespace mneme::cli

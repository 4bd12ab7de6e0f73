#include "apps/mneme/eval/eval_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "apps/eval/runs/long_table.h"
#include "apps/eval/runs/run_file.h"
#include "apps/eval/runs/suite_prompt.h"
#include "apps/eval/runs/suite_runner.h"
#include "apps/eval/runs/suite_table.h"
#include "apps/eval/suites/rows.h"
#include "apps/eval/suites/suite.h"
#include "apps/mneme/eval/eval_commands.h"
#include "apps/mneme/eval/eval_measure.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/base/seconds.h"
#include "src/base/size32.h"

namespace mneme::cli {
namespace {

template <typename Rows>
std::string names_of(const Rows& rows) {
  std::string names;
  for (const auto& row : rows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

bool by_decode(const EvalSetup& setup, const SuiteCommand& o, const eval::SuiteEntry& suite) {
  if (o.question_given) return setup.question == "decode";
  if (!o.paper.empty() && eval::find_paper(o.paper).question_by_prefill) return false;
  return suite.question_by_decode;
}

std::string file_text(const std::string& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

eval::SuiteSetting setting_of(const EvalSetup& setup, const SuiteCommand& o, const EvalBench& bench,
                              const eval::TokenCounter& counter) {
  eval::SuiteSetting s{.data = o.data, .lengths = setup.lengths, .seed = setup.seed, .max_tokens = o.max_tokens};
  if (o.tasks_given) s.tasks = setup.tasks;
  if (o.contexts_given) s.samples = setup.contexts;
  if (!o.template_file.empty()) s.jsonl.prompt_template = file_text(o.template_file);
  s.jsonl.context = o.document_field;
  s.jsonl.answers = o.answers_field;
  s.prose = &bench.prose();
  s.counter = &counter;
  s.frame_tokens = eval::frame_tokens(ChatFormat::detect(bench.tokenizer()));
  return s;
}

// Everything that answers depend on, but the shard.
nlohmann::json suite_settings(const EvalSetup& setup, const SuiteCommand& o, const eval::SuiteEntry& suite,
                              const std::vector<eval::MethodSpec>& specs, std::size_t contexts) {
  nlohmann::json j = eval_settings(setup);
  j["suite"] = o.suite;
  j["tasks"] = o.tasks_given ? nlohmann::json(setup.tasks) : nlohmann::json("all");
  j["lengths"] = setup.lengths;
  j["contexts"] = o.contexts_given ? setup.contexts : 0;
  j["question"] = by_decode(setup, o, suite) ? "decode" : "prefill";
  j["grader"] = o.grader.empty() ? "the suite's" : o.grader;
  j["samples"] = o.samples;
  j["temperature"] = o.temperature;
  j["top_p"] = o.top_p;
  j["max_tokens"] = o.max_tokens;
  j["longest_prompt"] = o.longest_prompt;
  j["context"] = setup.engine.context;
  j["forced"] = o.forced;
  j["along"] = o.along;
  j["paper"] = o.paper;
  if (o.at_once > 1) j["contexts_at_once"] = o.at_once;  // rounding
  j["methods"] = methods_json(specs);
  j["n_contexts"] = contexts;
  j["data"] = nlohmann::json::array();
  if (!o.data.empty())
    for (const char* ending : {".jsonl", ".json", ".txt", ".csv"}) try {
        for (const auto& file : eval::files_of(o.data, ending)) j["data"].push_back(file_settings(file));
        if (!std::filesystem::is_directory(o.data)) break;
      } catch (const Error&) {  // a folder without files of this ending
      }
  if (!o.template_file.empty()) j["template"] = file_settings(o.template_file);
  return j;
}

// Seconds that the loop over contexts took, and how many went into reading documents and into answers.
struct SuiteTiming {
  double wall = 0, prefill = 0, answers = 0;
};

void print_suite(const std::vector<eval::SuiteRecord>& records, const nlohmann::json& settings,
                 eval::TableLayout layout, const SuiteCommand& o, const EvalSetup& setup,
                 const SuiteTiming& timing = {}) {
  const eval::SuiteSummary summary = eval::summarise_suite(records);
  std::string table = eval::suite_markdown(summary, layout);
  const std::string along = eval::along_markdown(records), lines = eval::lines_markdown(records);
  for (const std::string& more : {lines, along})
    if (!more.empty()) table += "\n" + more;
  if (setup.json) {
    nlohmann::json out = eval::suite_json(summary);
    out["origin"] = eval_origin();
    out["settings"] = settings;
    if (timing.wall > 0)
      out["timing"] = {{"wall", timing.wall}, {"prefill", timing.prefill}, {"answers", timing.answers}};
    if (!along.empty()) out["along"] = eval::along_json(records);
    if (!lines.empty()) out["lines"] = eval::lines_json(records);
    fmt::print("{}\n", out.dump(1));
  } else {
    fmt::print("{}, the question through {}{}\n\n{}", settings.value("suite", ""), settings.value("question", ""),
               settings.value("forced", false) ? ", the answer fed as it should be" : "", table);
  }
  if (!o.table_file.empty()) write_text("--table", o.table_file, table);
  if (!setup.svg_file.empty()) write_text("--svg", setup.svg_file, eval::suite_svg(summary));
}

eval::TableLayout layout_of(const std::string& paper) {
  return paper.empty() ? eval::TableLayout::kMethodRows : eval::find_paper(paper).layout;
}

// Contexts that run at once, and the methods that have no record of them yet.
struct Group {
  std::vector<eval::SuiteRunner::Numbered> contexts;
  std::vector<eval::MethodSpec> left;
};

// Groups of at most `most` neighbours of the shard that lack the same methods.
void for_each_group(const std::vector<eval::SuiteContext>& contexts, const eval::Shard& shard,
                    const std::vector<eval::MethodSpec>& specs, const eval::RunFile& run, int most,
                    const std::function<void(const Group&)>& use) {
  Group group;
  std::vector<std::string> labels;
  const auto flush = [&] {
    if (!group.contexts.empty()) use(group);
    group.contexts.clear();
  };
  for (std::size_t u = 0; u < contexts.size(); ++u) {
    const std::int64_t number = u;
    if (!shard.has(number)) continue;
    std::vector<eval::MethodSpec> left;
    std::vector<std::string> lacking;
    for (const eval::MethodSpec& s : specs)
      if (!run.has(number, s.label)) left.push_back(s), lacking.push_back(s.label);
    if (left.empty()) continue;
    if (lacking != labels || std::ssize(group.contexts) == most) flush();
    group.left = std::move(left), labels = std::move(lacking);
    group.contexts.push_back({&contexts[u], number});
  }
  flush();
}

// The longest context that the suite needs, where it can be known before its files are read. 0: the model's.
std::int32_t context_of(const EvalSetup& setup, const SuiteCommand& o) {
  const eval::SuiteEntry& suite = eval::find_suite(o.suite);
  const std::int64_t longest = *std::max_element(setup.lengths.begin(), setup.lengths.end());
  if (suite.measure == eval::SuiteMeasure::kPerplexity) return (o.max_tokens > 0 ? o.max_tokens : 4096) + 64;
  if (suite.name == "long") return count32(longest) + (o.max_tokens > 0 ? o.max_tokens : 4096) + 512;
  if (suite.data == eval::SuiteData::kNeeded || (suite.name == "ruler" && !o.data.empty())) return 0;
  return count32(longest) + 1024;
}

}  // namespace

void add_suite_options(CLI::App& c, SuiteCommand& o) {
  constexpr const char* kGroup = "Suites";
  const auto add = [](CLI::Option* option) { return option->group(kGroup); };
  add(c.add_option("--suite", o.suite, "Of: " + names_of(eval::suite_table()))->type_name("NAME"));
  add(c.add_option("--data", o.data, "The suite's published file or folder")->type_name("PATH"));
  add(c.add_option("--grader", o.grader, "Scorer in place of the suite's: " + names_of(eval::scorer_table()))
          ->type_name("NAME"));
  add(c.add_option("--paper", o.paper, "Methods, budgets and table of a paper: " + names_of(eval::paper_table()))
          ->type_name("NAME"));
  add(c.add_option("--shard", o.shard, "Run the K-th of N parts of the suite (mneme eval merge joins them)")
          ->type_name("K/N")
          ->capture_default_str());
  add(c.add_option(
           "--contexts-at-once", o.at_once,
           "Contexts whose questions decode in the same steps: faster on a GPU; answers are those of one at a time "
           "up to rounding, or with --deterministic")
          ->check(whole_number(1, 1024))
          ->capture_default_str());
  add(c.add_option("--samples", o.samples, "Samples per question, for pass@k and avg@k")
          ->check(whole_number(1, 1024))
          ->capture_default_str());
  add(c.add_option("--temperature", o.temperature, "Sampling temperature; 0: greedy")
          ->check(number(0, 100))
          ->capture_default_str());
  add(c.add_option("--top-p", o.top_p, "Sample from the fewest tokens whose probabilities reach this sum")
          ->check(number(0, 1))
          ->capture_default_str());
  add(c.add_option("--max-tokens", o.max_tokens, "Tokens of an answer at most; 0: the suite's")
          ->check(whole_number(0, 1 << 24))
          ->capture_default_str());
  add(c.add_option("--longest-prompt", o.longest_prompt,
                   "Truncate the middle of prompts beyond this; 0: what the context leaves")
          ->check(whole_number(0, 1 << 30))
          ->capture_default_str());
  add(c.add_flag("--forced", o.forced,
                 "Teacher forcing: feed the reference; a line counts if every token of it was predicted"));
  add(c.add_option("--along", o.along, "Record selections and memory every n tokens of an answer; 0: never")
          ->check(whole_number(0, 1 << 24))
          ->capture_default_str());
  add(c.add_option("--template", o.template_file, "Prompt template of --suite jsonl, with {field} for a row's fields")
          ->type_name("FILE"));
  add(c.add_option("--document-field", o.document_field,
                   "Field of --suite jsonl that holds the document; what follows it is the question")
          ->type_name("FIELD")
          ->capture_default_str());
  add(c.add_option("--answers-field", o.answers_field,
                   "Field of --suite jsonl that holds the answer, a string or an array of strings")
          ->type_name("FIELD")
          ->capture_default_str());
  add(c.add_option("--table", o.table_file, "Write the tables as Markdown")->type_name("FILE"));
}

void run_suite(EvalSetup setup, const SuiteCommand& o, const std::vector<eval::MethodSpec>& specs,
               const std::string& run_file) {
  expect_model(setup.model);
  const eval::SuiteEntry& suite = eval::find_suite(o.suite);
  const eval::Shard shard = eval::parse_shard(o.shard);
  if (o.at_once > 1 && (o.forced || o.along > 0 || suite.measure == eval::SuiteMeasure::kPerplexity))
    fail(ErrorKind::kOption,
         "--contexts-at-once is for answers that are neither forced nor followed, and for no perplexity");
  setup.contexts_at_once = o.at_once;
  eval::SuiteRunOptions options{.measure = suite.measure, .samples = o.samples, .seed = setup.seed};
  options.question = by_decode(setup, o, suite) ? eval::QuestionPath::kDecode : eval::QuestionPath::kPrefill;
  if (!o.grader.empty()) options.grader = &eval::find_scorer(o.grader);
  options.sampling.temperature = o.temperature;
  options.sampling.top_p = o.top_p;
  options.longest_prompt = o.longest_prompt > 0 ? o.longest_prompt : suite.longest;
  options.forced = o.forced;
  options.along_every = o.along;
  if (suite.data == eval::SuiteData::kNeeded && o.data.empty())
    fail(ErrorKind::kOption, "--suite {} needs --data PATH ({})", suite.name, suite.summary);
  if (setup.engine.context == 0) setup.engine.context = context_of(setup, o);
  setup.context_of_model = setup.engine.context == 0;
  EvalBench bench(setup);
  for (const eval::MethodSpec& s : specs) compile(s.recipe, bench.engine().method_shape());
  const eval::TokenizerCounter counter(bench.tokenizer());
  const auto contexts = eval::read_suite(suite, setting_of(setup, o, bench, counter));
  const nlohmann::json settings = suite_settings(setup, o, suite, specs, contexts.size());
  eval::RunFile run(run_file, settings, shard);
  eval::SuiteRunner runner(bench.engine(), bench.tokenizer(), options);
  ProgressBar bar(ProgressBar::mode_for_stderr(!setup.no_progress));
  const auto total = std::ssize(contexts) * std::ssize(specs) / shard.n;
  auto n = std::ssize(run.records());
  bar.show(o.suite, n, total);
  SuiteTiming timing;
  const auto start = std::chrono::steady_clock::now();
  const auto done = [&](const eval::SuiteRecord& r) {
    timing.prefill += r.prefill_seconds, timing.answers += r.seconds;
    run.append(r);
    bar.show(o.suite, std::min(++n, total), total);
  };
  for_each_group(contexts, shard, specs, run, o.at_once, [&](const Group& group) {
    if (o.at_once == 1)
      runner.run(*group.contexts[0].context, group.contexts[0].number, group.left, done);
    else
      runner.run_together(group.contexts, group.left, done);
  });
  timing.wall = seconds_since(start);
  std::vector<eval::SuiteRecord> records = run.records();
  eval::sort_records(records, settings);
  print_suite(records, settings, layout_of(o.paper), o, setup, timing);
}

namespace {

struct MergeCommand {
  std::vector<std::string> files;
  SuiteCommand suite;
  EvalSetup setup;
};

int run_merge(const MergeCommand& c) {
  const eval::MergedRun merged = eval::merge_runs(c.files);
  if (merged.missing > 0)
    fmt::print(stderr, "mneme: {} of the run's (context, method) pairs have no record in these files\n",
               merged.missing);
  const std::string paper = c.suite.paper.empty() ? merged.settings.value("paper", "") : c.suite.paper;
  print_suite(merged.records, merged.settings, layout_of(paper), c.suite, c.setup);
  return merged.missing > 0 ? 1 : 0;
}

}  // namespace

void add_eval_merge(CLI::App& eval, int& code) {
  CLI::App* c = eval.add_subcommand("merge", "Merge the shards of a run into one table, or print a run's table again");
  const auto o = std::make_shared<MergeCommand>();
  c->add_option("files", o->files, "Records of --run")->required()->type_name("FILE...");
  c->add_option("--paper", o->suite.paper, "Table of a paper: " + names_of(eval::paper_table()))->type_name("NAME");
  c->add_option("--table", o->suite.table_file, "Write the tables as Markdown")->type_name("FILE");
  c->add_option("--svg", o->setup.svg_file, "Write a plot")->type_name("FILE");
  c->add_flag("--json", o->setup.json, "Print one JSON object instead of tables");
  c->callback([o, &code] { code = run_merge(*o); });
}

}  // namespace mneme::cli

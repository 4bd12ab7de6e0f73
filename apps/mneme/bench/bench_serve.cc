// mneme bench serve: load on a server, and when the tokens of its answers came.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/bench/machine.h"
#include "apps/bench/timed/load.h"
#include "apps/bench/timed/samples.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/bench/bench_commands.h"
#include "apps/mneme/bench/bench_report.h"
#include "apps/mneme/commit.h"
#include "apps/mneme/kv_options.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"
#include "src/server/server.h"

namespace mneme::cli {
namespace {

using Json = nlohmann::ordered_json;

struct BenchServe {
  server::LoadOptions load;
  std::string model;  // a server of our own
  server::ServerOptions server;
  bool no_prefix_cache = false;
  double ttft_ms = 0, tpot_ms = 0, e2e_ms = 0;  // what a good answer keeps; 0: anything
  bool json = false, no_progress = false;
};

struct Distribution {
  double mean = 0, median = 0, p90 = 0, p99 = 0;
};

Distribution distribution_of(std::vector<double> samples) {
  Distribution d;
  if (samples.empty()) return d;
  std::sort(samples.begin(), samples.end());
  for (const double s : samples) d.mean += ratio(s, samples.size());
  d.median = quantile(samples, 0.5);
  d.p90 = quantile(samples, 0.9);
  d.p99 = quantile(samples, 0.99);
  return d;
}

struct Report {
  std::int64_t complete = 0, failed = 0, good = 0, prompt_tokens = 0, output_tokens = 0, most_open = 0;
  double seconds = 0;
  std::string first_error;
  Distribution ttft, tpot, itl, e2e;  // seconds
};

Report report_of(const server::LoadRun& run, const BenchServe& o) {
  Report report{.most_open = run.most_open, .seconds = run.seconds};
  std::vector<double> ttft, tpot, itl, e2e;
  for (const server::LoadRecord& r : run.records) {
    if (!r.complete()) {
      if (report.failed++ == 0) report.first_error = r.error;
      continue;
    }
    ++report.complete;
    report.prompt_tokens += r.prompt_tokens;
    report.output_tokens += r.output_tokens;
    ttft.push_back(r.first_token());
    e2e.push_back(r.end);
    if (r.output_tokens > 1) tpot.push_back(r.per_token());
    for (std::size_t i = 1; i < r.pieces.size(); ++i) itl.push_back(r.pieces[i] - r.pieces[i - 1]);
    const auto within = [](double seconds, double ms) { return ms == 0 || seconds * 1000 <= ms; };
    report.good += within(r.first_token(), o.ttft_ms) && within(r.per_token(), o.tpot_ms) && within(r.end, o.e2e_ms);
  }
  report.ttft = distribution_of(std::move(ttft));
  report.tpot = distribution_of(std::move(tpot));
  report.itl = distribution_of(std::move(itl));
  report.e2e = distribution_of(std::move(e2e));
  return report;
}

double rate(std::int64_t n, const Report& r) {
  return ratio(n, r.seconds);
}

std::string table(const Report& r) {
  std::string out = fmt::format("{} of {} requests complete in {:.2f} s, {} at once at most\n", r.complete,
                                r.complete + r.failed, r.seconds, r.most_open);
  if (r.failed > 0) out += fmt::format("the first that is not: {}\n", r.first_error);
  out += fmt::format("{:.2f} requests/s, {:.2f} good ones/s, {:.1f} prompt tokens/s, {:.1f} output tokens/s\n\n",
                     rate(r.complete, r), rate(r.good, r), rate(r.prompt_tokens, r), rate(r.output_tokens, r));
  out += fmt::format("{:<28}{:>10}{:>10}{:>10}{:>10}\n", "ms", "mean", "median", "p90", "p99");
  for (const auto& [name, d] : {std::pair("ttft, first token", r.ttft), std::pair("tpot, a token after it", r.tpot),
                                std::pair("itl, between pieces", r.itl), std::pair("e2el, whole answer", r.e2e)}) {
    out += fmt::format("{:<28}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", name, d.mean * 1e3, d.median * 1e3, d.p90 * 1e3,
                       d.p99 * 1e3);
  }
  return out;
}

Json json_of(const Report& r, const BenchServe& o) {
  const auto milliseconds = [](const Distribution& d) {
    return Json{{"mean", d.mean * 1e3}, {"median", d.median * 1e3}, {"p90", d.p90 * 1e3}, {"p99", d.p99 * 1e3}};
  };
  Json json;
  json["command"] = command_line();
  json["commit"] = build_commit();
  json["machine"] = machine_json(read_machine());
  json["model"] = o.load.model;
  json["requests"] = o.load.requests;
  json["request_rate"] = o.load.request_rate;
  json["max_concurrency"] = o.load.max_concurrency;
  json["completed"] = r.complete;
  json["failed"] = r.failed;
  json["most_open"] = r.most_open;
  json["seconds"] = r.seconds;
  json["total_input_tokens"] = r.prompt_tokens;
  json["total_output_tokens"] = r.output_tokens;
  json["request_throughput"] = rate(r.complete, r);
  json["request_goodput"] = rate(r.good, r);
  json["output_throughput"] = rate(r.output_tokens, r);
  json["total_token_throughput"] = rate(r.prompt_tokens + r.output_tokens, r);
  json["ttft_ms"] = milliseconds(r.ttft);
  json["tpot_ms"] = milliseconds(r.tpot);
  json["itl_ms"] = milliseconds(r.itl);
  json["e2el_ms"] = milliseconds(r.e2e);
  return json;
}

// A server in this process for as long as it lives.
class OwnServer {
 public:
  OwnServer(server::ServerOptions options, ProgressBar& bar)
      : server_(std::move(options), [&bar](std::string_view what, auto d, auto t) { bar.show(what, d, t); }),
        thread_([this] { server_.run(); }) {
    bar.clear();
  }
  ~OwnServer() {
    server_.stop();
    thread_.join();
  }
  std::uint16_t port() const { return server_.port(); }

 private:
  server::Server server_;
  std::thread thread_;
};

int bench_serve(BenchServe o) {
  ProgressBar bar(ProgressBar::mode_for_stderr(!o.no_progress));
  std::optional<OwnServer> own;
  if (!o.model.empty()) {
    o.server.model = o.model;
    o.server.listen.port = 0;
    o.server.prefix_cache = !o.no_prefix_cache;
    o.server.limits.max_queue = std::max(o.server.limits.max_queue, o.load.requests);
    o.server.limits.max_connections =
        std::max(o.server.limits.max_connections, count32(std::min<std::int64_t>(o.load.requests + 64, 1 << 20)));
    own.emplace(o.server, bar);
    o.load.port = own->port();
  }
  const auto models =
      nlohmann::json::parse(server::http_get(o.load.host, o.load.port, "/v1/models", o.load.api_key), nullptr, false);
  if (models.is_object() && models.contains("data") && !models["data"].empty()) {
    const auto& model = models["data"][0];
    if (o.load.model.empty()) o.load.model = model.value("id", "");
    // Of other servers the number is not known; small ids are tokens of every vocabulary.
    if (model.contains("meta") && model["meta"].is_object())
      o.load.vocabulary = model["meta"].value("vocabulary", o.load.vocabulary);
  }
  const server::LoadRun run =
      server::run_load(o.load, [&](std::int64_t done) { bar.show("load, requests", done, o.load.requests); });
  bar.clear();
  const Report report = report_of(run, o);
  AnswerWriter out;
  out.write(o.json ? json_of(report, o).dump(2) : table(report));
  out.end_line();
  return report.complete > 0 ? 0 : 2;
}

void add_target_options(CLI::App& c, BenchServe& o) {
  const auto add = [](CLI::Option* option) { option->group("Server"); };
  add(c.add_option("-m,--model", o.model, "Start a server for this model in this process (default: use a running one)")
          ->type_name("PATH"));
  add(c.add_option("--host", o.load.host, "Host of the server")->capture_default_str());
  add(c.add_option("--port", o.load.port, "Port of the server")->capture_default_str()->check(whole_number(1, 65535)));
  add(c.add_option("--api-key", o.load.api_key, "API key of the server")->type_name("KEY"));
  add(c.add_option("--served-model-name", o.load.model, "Model of the server (default: the first it lists)")
          ->type_name("NAME"));
  add(c.add_option("--max-num-seqs,--parallel", o.server.engine.max_sequences, "With -m: sequences of one step")
          ->capture_default_str()
          ->check(whole_number(1, 4096)));
  add(c.add_option("-t,--threads", o.server.engine.threads, "With -m: compute threads")->check(whole_number(1, 1024)));
  add(c.add_flag("--deterministic", o.server.engine.deterministic, "With -m: batch-invariant rounding by fixed tiles"));
  add(c.add_flag("--no-prefix-caching", o.no_prefix_cache, "With -m: disable the prefix cache"));
}

void add_load_options(CLI::App& c, BenchServe& o) {
  const auto add = [](CLI::Option* option) { option->group("Load"); };
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  add(c.add_option("-n,--requests,--num-prompts", o.load.requests, "Number of requests")
          ->capture_default_str()
          ->check(whole_number(1, 10000000)));
  add(c.add_option("--request-rate", o.load.request_rate, "Requests a second, by a Poisson process; 0: all at once")
          ->capture_default_str()
          ->check(number(0, 1e6)));
  add(c.add_option("--max-concurrency", o.load.max_concurrency, "Concurrent requests; 0: no limit")
          ->capture_default_str()
          ->check(whole_number(0, 1 << 20)));
  add(c.add_option("--prompt-tokens,--input-len", o.load.prompt_tokens, "Prompt lengths, used in turn (default 512)")
          ->type_name("TOKENS,...")
          ->delimiter(',')
          ->transform(tokens(1, kMost)));
  add(c.add_option("--output-tokens,--output-len", o.load.output_tokens, "Tokens of an answer")
          ->type_name("TOKENS")
          ->capture_default_str()
          ->transform(tokens(1, kMost)));
  add(c.add_option("--shared-tokens,--prefix-len", o.load.shared_tokens, "Tokens of the prefix that all prompts share")
          ->type_name("TOKENS")
          ->capture_default_str()
          ->transform(tokens(0, kMost)));
  add(c.add_option(
           "--kv", o.load.kv,
           "How requests attend: quest:budget=1024, or their field kv: '{\"method\": \"quest\", \"budget\": 1024}'")
          ->type_name("NAME[:K=V,...]|JSON"));
  add(c.add_option("-s,--seed", o.load.seed, "Seed of prompts and gaps")->capture_default_str());
  for (const auto& [name, field, words] :
       {std::tuple("--ttft-ms", &o.ttft_ms, "Goodput counts answers with TTFT up to this; 0: any"),
        std::tuple("--tpot-ms", &o.tpot_ms, "Goodput counts answers with TPOT up to this; 0: any"),
        std::tuple("--e2e-ms", &o.e2e_ms, "Goodput counts answers that end within this; 0: any")}) {
    c.add_option(name, *field, words)->type_name("MS")->check(number(0, 1e9))->group("Goodput");
  }
}

}  // namespace

namespace {

// The field kv of requests that attend by this recipe. Errors  kOption: as parse_recipe().
std::string kv_field(const std::string& text) {
  const MethodText method = parse_method(text);
  parse_recipe(method.settings.empty() ? method.name : method.name + ':' + method.settings);
  return nlohmann::json{{"method", method.name}, {"overrides", method.settings}}.dump();
}

}  // namespace

void add_bench_serve(CLI::App& bench, int& code) {
  auto options = std::make_shared<BenchServe>();
  CLI::App* c = bench.add_subcommand("serve", "Load-test a server: latencies, throughput, goodput");
  add_target_options(*c, *options);
  add_load_options(*c, *options);
  c->add_flag("--json", options->json, "Print one JSON object")->group("Output");
  c->add_flag("--no-progress", options->no_progress, "No progress bar, and no line every 10 s without a terminal")
      ->group("Output");
  c->footer("Example: mneme bench serve -m models/needle-27m-q8_0.gguf -n 64 --max-concurrency 8 --prompt-tokens 64");
  c->callback([options, &code] {
    if (!options->load.kv.empty() && !options->load.kv.starts_with('{')) options->load.kv = kv_field(options->load.kv);
    if (!options->load.kv.empty() && !nlohmann::json::accept(options->load.kv))
      fail(ErrorKind::kOption, "--kv: not JSON: {}", options->load.kv);
    code = bench_serve(*options);
  });
}

}  // namespace mneme::cli

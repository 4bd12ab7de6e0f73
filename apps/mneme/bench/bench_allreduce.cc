// `mneme bench allreduce`: what ranks pay to sum rows, by size and form.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/bench/device/device_bench.h"
#include "apps/bench/timed/allreduce_bench.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/bench/bench_commands.h"
#include "apps/mneme/options.h"
#include "apps/mneme/rank_options.h"
#include "src/base/error.h"

namespace mneme::cli {
namespace {

struct AllReduceCommand {
  RankOptions ranks;
  std::string device = "cpu";
  std::vector<std::int64_t> kib = {8, 16, 64, 256, 1024, 4096, 16384, 65536, 524288};
  std::vector<std::string> forms;
  std::int32_t times = 20;
  bool json = false;
};

std::vector<std::string> forms_of(const AllReduceCommand& o, const RankGroup& ranks) {
  if (!o.forms.empty() && o.device == "cpu") fail(ErrorKind::kOption, "--form: only with --device cuda");
  if (!o.forms.empty()) return o.forms;
  if (o.device == "cpu") return {ranks.shares_memory() ? "shared" : "socket"};
  if (ranks.shares_gpu()) return {"host"};
  return {"nccl", "peers", "reads", "nccl+norm", "peers+norm", "host"};
}

std::vector<AllReduceCase> cases_of(const AllReduceCommand& o, const std::vector<std::string>& forms) {
  std::vector<AllReduceCase> cases;
  for (const std::string& form : forms)
    for (const std::int64_t kib : o.kib) cases.push_back({.bytes = static_cast<std::size_t>(kib) << 10, .form = form});
  return cases;
}

std::string table_of(const AllReduceCommand& o, const std::vector<std::string>& forms,
                     const std::vector<AllReduceResult>& results) {
  std::string table = fmt::format("{:>10}", "KiB");
  for (const std::string& form : forms) table += fmt::format(" {:>13} {:>7}", form + " us", "GB/s");
  for (std::size_t size = 0; size < o.kib.size(); ++size) {
    table += fmt::format("\n{:>10}", o.kib[size]);
    for (std::size_t f = 0; f < forms.size(); ++f) {
      const double seconds = results[f * o.kib.size() + size].seconds;
      table += seconds > 0 ? fmt::format(" {:>13.2f} {:>7.2f}", 1e6 * seconds,
                                         static_cast<double>(o.kib[size] << 10) / seconds / 1e9)
                           : fmt::format(" {:>13} {:>7}", "", "");
    }
  }
  return table;
}

int allreduce(const AllReduceCommand& o) {
  const EngineOptions engine{.device = parse_device(o.device)};
  const std::unique_ptr<RankGroup> ranks = join_ranks(o.ranks, engine);
  if (ranks == nullptr) fail(ErrorKind::kOption, "bench allreduce: expected --tensor-parallel-size of 2 or more");
  const std::vector<std::string> forms = forms_of(o, *ranks);
  const std::vector<AllReduceCase> cases = cases_of(o, forms);
  std::vector<AllReduceResult> results;
  if (o.device == "cuda")
    results = device_benches().all_reduces(ranks->world(), cases, o.times);
  else
    for (const AllReduceCase& c : cases) results.push_back(measure_all_reduce(ranks->world(), c, o.times));
  ranks->world().barrier(Patience::kWhileTheyLive);
  if (!ranks->leads()) return 0;
  nlohmann::ordered_json json = {{"test", "allreduce"}, {"device", o.device}, {"ranks", ranks->world().size()}};
  for (std::size_t i = 0; i < cases.size(); ++i)
    if (results[i].a_run > 0)
      json["results"].push_back({{"bytes", static_cast<double>(cases[i].bytes)},
                                 {"form", cases[i].form},
                                 {"seconds", results[i].seconds},
                                 {"a_run", results[i].a_run}});
  AnswerWriter out;
  out.write(o.json ? json.dump() : table_of(o, forms, results));
  out.end_line();
  return 0;
}

}  // namespace

void add_bench_allreduce(CLI::App& bench, int& code) {
  auto options = std::make_shared<AllReduceCommand>();
  CLI::App* c = bench.add_subcommand("allreduce", "Time sums over ranks by size; on devices inside CUDA graphs");
  c->add_option("--device", options->device, "cpu, or cuda: a GPU a rank")
      ->type_name("NAME")
      ->capture_default_str()
      ->check(one_of({"cpu", "cuda"}));
  c->add_option("--kib", options->kib, "Sizes (default 8 to 524288)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 22));
  c->add_option(
       "--form", options->forms,
       "With --device cuda: nccl, peers (a kernel that writes to the other GPUs' memory), reads (one that reads it, "
       "two "
       "ranks), host (over host memory); nccl+norm and peers+norm: rows of 4,096 that also join the residual and "
       "start the next norm (default: all; ranks that share a GPU: host)")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->check(one_of({"nccl", "peers", "reads", "nccl+norm", "peers+norm", "host"}));
  c->add_option("-n,--repetitions", options->times, "Timed repetitions (default 20)")->check(whole_number(1, 1000));
  c->add_flag("--json", options->json, "Print one JSON object");
  add_rank_options(*c, options->ranks);
  c->callback([options, &code] { code = allreduce(*options); });
}

}  // namespace mneme::cli

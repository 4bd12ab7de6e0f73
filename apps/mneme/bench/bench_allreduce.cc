// `mneme bench allreduce`: what ranks pay to sum rows, by size and form.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/bench/allreduce_bench.h"
#include "apps/bench/device/device_bench.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/commands.h"
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

int allreduce(const AllReduceCommand& o) {
  const EngineOptions engine{.device = parse_device(o.device)};
  const std::unique_ptr<RankGroup> ranks = join_ranks(o.ranks, engine);
  if (ranks == nullptr) fail(ErrorKind::kOption, "bench allreduce: expected --tensor-parallel-size of 2 or more");
  const std::vector<std::string> forms = forms_of(o, *ranks);
  std::string table = fmt::format("{:>10}", "KiB");
  for (const std::string& form : forms) table += fmt::format(" {:>13} {:>7}", form + " us", "GB/s");
  table += "\n";
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const std::int64_t kib : o.kib) {
    table += fmt::format("{:>10}", kib);
    for (const std::string& form : forms) {
      const AllReduceCase c{.bytes = static_cast<std::size_t>(kib) << 10, .form = form};
      const AllReduceResult r = o.device == "cuda" ? device_benches().all_reduce(ranks->world(), c, o.times)
                                                   : measure_all_reduce(ranks->world(), c, o.times);
      if (r.a_run == 0) {
        table += fmt::format(" {:>13} {:>7}", "", "");
        continue;
      }
      const double bytes = static_cast<double>(c.bytes);
      table += fmt::format(" {:>13.2f} {:>7.2f}", 1e6 * r.seconds, bytes / r.seconds / 1e9);
      results.push_back({{"bytes", bytes}, {"form", form}, {"seconds", r.seconds}, {"a_run", r.a_run}});
    }
    table += "\n";
  }
  ranks->world().barrier(Patience::kWhileTheyLive);
  if (!ranks->leads()) return 0;
  AnswerWriter out;
  const nlohmann::ordered_json json = {
      {"test", "allreduce"}, {"device", o.device}, {"ranks", ranks->world().size()}, {"results", results}};
  out.write(o.json ? json.dump() : table);
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

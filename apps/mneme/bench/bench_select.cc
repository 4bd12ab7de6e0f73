// `mneme bench select`: tokens selected by 1-bit keys in one layer, and attended, by themselves.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench/device/device_bench.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/bench/bench_commands.h"
#include "apps/mneme/bench/bench_report.h"
#include "apps/mneme/measured/bench_model.h"
#include "apps/mneme/options.h"
#include "src/cuda/device.h"

namespace mneme::cli {
namespace {

struct SelectCommand {
  BenchModelOptions model;
  std::vector<std::int32_t> depths = {32768}, groups = {32};
  std::int32_t budget = 2048, times = 20;
  bool json = false;
};

int select(const SelectCommand& o) {
  const ModelConfig config = read_bench_shape(o.model).config;
  std::string table = fmt::format("{:>8} {:>6} {:>9} {:>8} {:>7} {:>8} {:>11} {:>10} {:>8}\n", "tokens", "group",
                                  "index MB", "scan us", "GB/s", "of read", "select us", "attend us", "GB/s");
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const std::int32_t depth : o.depths)
    for (const std::int32_t group : o.groups) {
      const SelectResult r =
          device_benches().select(config, {.depth = depth, .budget = o.budget, .group_tokens = group}, o.times);
      const double rate = r.index_bytes / r.scan_seconds;
      table += fmt::format("{:>8} {:>6} {:>9.2f} {:>8.2f} {:>7.0f} {:>7.0f}% {:>11.2f} {:>10.2f} {:>8.0f}\n", depth,
                           group, r.index_bytes / 1e6, 1e6 * r.scan_seconds, rate / 1e9, 100 * rate / r.read_rate,
                           1e6 * r.select_seconds, 1e6 * r.attend_seconds, r.attended_bytes / r.attend_seconds / 1e9);
      results.push_back({{"tokens", depth},
                         {"group_tokens", group},
                         {"budget", o.budget},
                         {"index_bytes", r.index_bytes},
                         {"scan_seconds", r.scan_seconds},
                         {"scan_bytes_per_second", rate},
                         {"read_bytes_per_second", r.read_rate},
                         {"select_seconds", r.select_seconds},
                         {"attend_seconds", r.attend_seconds},
                         {"attended_bytes", r.attended_bytes}});
    }
  AnswerWriter out;
  out.write(o.json ? device_test_json("select", device_info(0), bench_model_name(o.model), results) : table);
  out.end_line();
  return 0;
}

}  // namespace

void add_bench_select(CLI::App& bench, int& code) {
  auto options = std::make_shared<SelectCommand>();
  CLI::App* c =
      bench.add_subcommand("select", "Time the 1-bit scan, selection and attention of one layer (needs a GPU)");
  c->alias("choose");  // its name in 0.1
  add_bench_model_options(*c, options->model);
  c->add_option("--depth", options->depths, "Tokens of the context (default 32768)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(64, 1 << 20));
  c->add_option("--group", options->groups, "Tokens of a quantisation group: 32, 64, 128, 256 (default 32)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(one_of({"32", "64", "128", "256"}));
  c->add_option("--kv-budget", options->budget, "Attended tokens (default 2048)")
      ->type_name("TOKENS")
      ->transform(tokens(1, 1 << 16));
  c->add_option("-n,--repetitions", options->times, "Timed repetitions (default 20)")->check(whole_number(1, 1000));
  c->add_flag("--json", options->json, "Print one JSON object");
  c->callback([options, &code] { code = select(*options); });
}

}  // namespace mneme::cli

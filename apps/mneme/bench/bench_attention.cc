// `mneme bench attention`: a prompt's attention in one layer, by itself.
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

struct AttentionCommand {
  BenchModelOptions model;
  std::vector<std::int32_t> lengths = {32768}, depths = {0};
  std::int32_t times = 10;
  bool json = false;
};

int attention(const AttentionCommand& o) {
  const ModelConfig config = read_bench_shape(o.model).config;
  std::string table =
      fmt::format("{:>8} {:>8} {:>10} {:>10} {:>16}\n", "depth", "tokens", "ms", "TFLOP/s", "by library");
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const std::int32_t depth : o.depths)
    for (const std::int32_t n : o.lengths) {
      const AttentionResult r = device_benches().attention(config, depth, n, o.times);
      table += fmt::format("{:>8} {:>8} {:>10.3f} {:>10.1f} {:>16}\n", depth, n, 1e3 * r.seconds,
                           r.flops_a_second / 1e12, r.library_rows);
      results.push_back({{"depth", depth},
                         {"tokens", n},
                         {"seconds", r.seconds},
                         {"flops_per_second", r.flops_a_second},
                         {"library_rows", r.library_rows}});
    }
  AnswerWriter out;
  out.write(o.json ? device_test_json("attention", device_info(0), bench_model_name(o.model), results) : table);
  out.end_line();
  return 0;
}

}  // namespace

void add_bench_attention(CLI::App& bench, int& code) {
  auto options = std::make_shared<AttentionCommand>();
  CLI::App* c = bench.add_subcommand("attention", "Time a prompt's causal attention in one layer (needs a GPU)");
  add_bench_model_options(*c, options->model);
  c->add_option("--depth", options->depths, "Tokens before them (default 0)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(0, 1 << 20));
  c->add_option("-p,--prompt", options->lengths, "Tokens of the prompt (default 32768)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 20));
  c->add_option("-n,--repetitions", options->times, "Timed repetitions (default 10)")->check(whole_number(1, 1000));
  c->add_flag("--json", options->json, "Print one JSON object");
  c->callback([options, &code] { code = attention(*options); });
}

}  // namespace mneme::cli

// `mneme bench gemm`: the GEMMs of a layer with few rows, by type of the weights, by themselves.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench/device/device_bench.h"
#include "apps/bench/shapes.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/bench/bench_commands.h"
#include "apps/mneme/bench/bench_report.h"
#include "apps/mneme/measured/bench_model.h"
#include "apps/mneme/options.h"
#include "src/cuda/device.h"

namespace mneme::cli {
namespace {

struct GemmCommand {
  std::string shape = "llama-3.1-8b";
  std::vector<std::string> weights = {"bf16"};
  std::vector<std::int32_t> rows = {1}, splits = {0};
  std::int32_t times = 10;
  bool json = false;
};

int gemm(const GemmCommand& o) {
  const ModelConfig& config = bench_shape(o.shape);
  std::string table = fmt::format("{:>7} {:>4} {:>6} {:>9} {:>6}", "weights", "rows", "splits", "layer us", "GB/s");
  for (const char* name : kGemmNames) table += fmt::format(" {:>11} {:>5}", fmt::format("{} us", name), "GB/s");
  table += "\n";
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const std::string& weights : o.weights)
    for (const std::int32_t rows : o.rows)
      for (const std::int32_t splits : o.splits) {
        const GemmResult r =
            device_benches().gemm(config,
                                  {.weights = bench_weight_mix({.model = {}, .shape = {}, .weights = weights}).most,
                                   .rows = rows,
                                   .splits = splits},
                                  o.times);
        nlohmann::ordered_json json = {{"weights", weights},
                                       {"rows", rows},
                                       {"splits", splits},
                                       {"layer_seconds", r.layer_seconds},
                                       {"layer_bytes", r.layer_bytes()}};
        table += fmt::format("{:>7} {:>4} {:>6} {:>9.2f} {:>6.0f}", weights, rows, splits, 1e6 * r.layer_seconds,
                             r.layer_bytes() / r.layer_seconds / 1e9);
        for (std::size_t i = 0; i < kGemmNames.size(); ++i) {
          table += fmt::format(" {:>11.2f} {:>5.0f}", 1e6 * r.seconds[i], r.bytes[i] / r.seconds[i] / 1e9);
          json[kGemmNames[i]] = {{"seconds", r.seconds[i]}, {"bytes", r.bytes[i]}};
        }
        table += "\n";
        results.push_back(json);
      }
  AnswerWriter out;
  out.write(o.json ? device_test_json("gemm", device_info(0), o.shape, results) : table);
  out.end_line();
  return 0;
}

}  // namespace

void add_bench_gemm(CLI::App& bench, int& code) {
  auto options = std::make_shared<GemmCommand>();
  CLI::App* c = bench.add_subcommand("gemm", "Time a layer's skinny GEMMs by weight type (needs a GPU)");
  c->add_option("--shape", options->shape, "Known model shape (docs/guide/measure.md)")
      ->type_name("NAME")
      ->capture_default_str();
  c->add_option("--weights", options->weights, "Weight types, those of mneme bench decode (default bf16)")
      ->type_name("TYPE,...")
      ->delimiter(',');
  c->add_option("--rows", options->rows, "Rows of activations (default 1)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(1, 64));
  c->add_option("--splits", options->splits, "Splits of K; 0: by shape (default 0)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(0, 8));
  c->add_option("-n,--repetitions", options->times, "Timed repetitions (default 10)")->check(whole_number(1, 1000));
  c->add_flag("--json", options->json, "Print one JSON object");
  c->callback([options, &code] { code = gemm(*options); });
}

}  // namespace mneme::cli

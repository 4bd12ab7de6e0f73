// `mneme bench gather`: blocks of host memory that the device gathers, alone and during decode steps.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench/device/device_bench.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/bench/bench_commands.h"
#include "apps/mneme/bench/bench_report.h"
#include "apps/mneme/measured/bench_model.h"
#include "apps/mneme/options.h"
#include "src/base/numa.h"
#include "src/base/ratio.h"

namespace mneme::cli {
namespace {

struct GatherCommand {
  BenchModelOptions model;
  std::vector<std::int32_t> blocks = {512, 4096, 16384, 65536}, threads = {1, 2, 4, 8, 16};
  std::vector<double> pools = {8};
  std::vector<std::string> by = {"bulk"};
  bool json = false;
};

struct GatherLine {
  DeviceBench::GatherCase c;
  DeviceBench::GatherResult r;
};

std::string table_of(const std::vector<GatherLine>& rows) {
  std::string out = fmt::format("{:>8} {:>7} {:>9} {:>6} {:>10} {:>12} {:>14} {:>12}\n", "bytes", "blocks", "pool GiB",
                                "by", "GB/s", "GB/s beside", "ms/step alone", "times beside");
  for (const GatherLine& row : rows)
    out += fmt::format("{:>8} {:>7} {:>9.1f} {:>6} {:>10.1f} {:>12.1f} {:>14.3f} {:>12.3f}\n", row.c.block_bytes,
                       row.c.thread_blocks, gibibytes(row.c.pool_bytes), row.c.bulk ? "bulk" : "loads",
                       row.r.idle_rate / 1e9, row.r.concurrent_rate / 1e9, 1e3 * row.r.step_alone,
                       row.r.step_concurrent / row.r.step_alone);
  return out;
}

std::string json_of(const GatherCommand& o, const DeviceBench& bench, const std::vector<GatherLine>& rows) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const GatherLine& row : rows)
    results.push_back({{"block_bytes", row.c.block_bytes},
                       {"thread_blocks", row.c.thread_blocks},
                       {"pool_bytes", row.c.pool_bytes},
                       {"by", row.c.bulk ? "bulk" : "loads"},
                       {"bytes_per_second", row.r.idle_rate},
                       {"bytes_per_second_beside", row.r.concurrent_rate},
                       {"step_seconds_alone", row.r.step_alone},
                       {"step_seconds_beside", row.r.step_concurrent}});
  return device_test_json("gather", bench.device(), bench_model_name(o.model), results);
}

int gather(const GatherCommand& o) {
  constexpr std::int64_t kContext = 8192;
  const std::unique_ptr<ThreadPool> threads = make_thread_pool(1, Pinning::kNone, NumaPolicy::kNone);
  const CpuContext cpu{.pool = threads.get()};
  std::unique_ptr<Model> model = load_bench_model(o.model, kContext, cpu, {}, ShapeWeights::kNone);
  const auto bench = device_benches().make(std::move(model), {.random = !o.model.shape.empty(),
                                                              .mix = bench_weight_mix(o.model),
                                                              .options = {},
                                                              .deepest = kContext,
                                                              .most = 1});
  std::vector<GatherLine> rows;
  for (const double pool : o.pools)
    for (const std::string& by : o.by)
      for (const std::int32_t bytes : o.blocks)
        for (const std::int32_t blocks : o.threads) {
          const DeviceBench::GatherCase c{.block_bytes = bytes,
                                          .thread_blocks = blocks,
                                          .pool_bytes = static_cast<std::int64_t>(pool * (1 << 30)),
                                          .bulk = by == "bulk"};
          rows.push_back({c, bench->gather(c)});
        }
  AnswerWriter out;
  out.write(o.json ? json_of(o, *bench, rows) : table_of(rows));
  out.end_line();
  return 0;
}

}  // namespace

void add_bench_gather(CLI::App& bench, int& code) {
  auto options = std::make_shared<GatherCommand>();
  CLI::App* c = bench.add_subcommand(
      "gather", "Time gathers of host memory blocks by the device, alone and beside decode steps (needs a GPU)");
  add_bench_model_options(*c, options->model);
  c->add_option("--block", options->blocks, "Bytes of a block, multiples of 512 (default 512,4096,16384,65536)")
      ->type_name("BYTES,...")
      ->delimiter(',')
      ->check(CLI::Validator(
          [](const std::string& text) {
            int n = 0;
            const bool good = CLI::detail::lexical_cast(text, n) && n >= 512 && n <= 1 << 20 && n % 512 == 0;
            return good ? std::string() : "expected a multiple of 512 up to 1048576, found \"" + text + "\"";
          },
          "", "block"));
  c->add_option("--thread-blocks,--blocks-of-threads", options->threads, "Thread blocks that copy (default 1,2,4,8,16)")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(whole_number(1, 1024));
  c->add_option("--pool", options->pools, "GiB of host memory that the blocks are spread over (default 8)")
      ->type_name("SIZE,...")
      ->delimiter(',')
      ->transform(gib(0.25, 1024));
  c->add_option("--by", options->by, "bulk: bulk copies; loads: loads and stores (default bulk)")
      ->type_name("FORM,...")
      ->delimiter(',')
      ->check(one_of({"bulk", "loads"}));
  c->add_flag("--json", options->json, "Print one JSON object");
  c->callback([options, &code] { code = gather(*options); });
}

}  // namespace mneme::cli

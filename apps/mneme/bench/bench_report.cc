#include "apps/mneme/bench/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/eval/figures/chart.h"
#include "apps/mneme/commit.h"
#include "apps/mneme/run/run_report.h"
#include "mneme/mneme.h"
#include "src/base/ratio.h"
#include "src/base/underlying.h"

namespace mneme::cli {
namespace {

using Json = nlohmann::ordered_json;

double mega(double bytes) {
  return bytes / 1e6;
}

// Of a phase's column.
std::size_t phase_width(std::string_view name) {
  return std::max<std::size_t>(name.size(), 7);
}

std::string head(const BenchReport& r) {
  if (r.device)
    return fmt::format("{}: {:.1f} M parameters, {:.1f} MiB {}, KV {}\n{}, driver {}; mneme {} ({})\n", r.model,
                       ratio(r.parameters, 1e6), mebibytes(r.weight_bytes), r.weights, r.kv_dtype, r.device->name,
                       r.device->driver, version(), build_commit());
  return fmt::format("{}: {:.1f} M parameters, {:.1f} MiB {}, KV {}\n{}; {} thread{}{}; mneme {} ({})\n", r.model,
                     ratio(r.parameters, 1e6), mebibytes(r.weight_bytes), r.weights, r.kv_dtype, r.machine.cpu,
                     r.threads, r.threads == 1 ? "" : "s", r.deterministic ? ", deterministic" : "", version(),
                     build_commit());
}

// Widths as the columns' heads.
std::string main_table(const BenchReport& r) {
  std::string out =
      r.decode
          ? fmt::format("\n{:<16} {:<10} {:>5} {:>20} {:>10} {:>9} {:>9} {:>10} {:>8} {:>9} {:>6}\n", "test", "method",
                        "batch", "tokens/s", "ms/step", "p10", "p99", "MB/step", "GB/s", "floor ms", "of it")
          : fmt::format("\n{:<16} {:<10} {:>5} {:>20} {:>10} {:>9} {:>9} {:>10} {:>8} {:>9} {:>6}\n", "test", "method",
                        "batch", "tokens/s", "s/prompt", "ms/step", "p99", "Gop/token", "Gop/s", "floor s", "of it");
  for (const BenchLine& row : r.rows) {
    const BenchResult& b = row.result;
    const std::string rate = fmt::format("{:.1f} +- {:.1f}", b.tokens_per_second, b.tokens_per_second_deviation);
    out += fmt::format("{:<16} {:<10} {:>5} {:>20} ", row.test, row.method, row.c.batch, rate);
    if (r.decode) {
      out += fmt::format("{:>10.3f} {:>9.3f} {:>9.3f} {:>10.2f} {:>8.1f} {:>9.3f} {:>5.0f}%\n", 1e3 * b.step.median,
                         1e3 * b.step.p10, 1e3 * b.step.p99, mega(b.cost.bytes()), b.bandwidth / 1e9,
                         1e3 * b.floor_seconds, 100 * b.share);
    } else {
      out += fmt::format("{:>10.3f} {:>9.2f} {:>9.2f} {:>10.3f} {:>8.1f} {:>9.3f} {:>5.0f}%\n", b.prompt.median,
                         1e3 * b.step.median, 1e3 * b.step.p99, b.cost.operations / (row.c.depth * row.c.batch) / 1e9,
                         b.gemm_rate / 1e9, b.floor_seconds, 100 * b.share);
    }
  }
  return out;
}

std::string bytes_table(const BenchReport& r) {
  std::string out = fmt::format("\n{:<16} {:<10} {:>5} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}\n",
                                r.decode ? "MB a step" : "MB a prompt", "", "batch", "weights", "KV read", "KV written",
                                "index read", "attended", "KV MiB held");
  for (const BenchLine& row : r.rows) {
    const StepCost& c = row.result.cost;
    out += fmt::format("{:<16} {:<10} {:>5} {:>12.2f} {:>12.3f} {:>12.4f} {:>12.3f} {:>12} {:>12.1f}\n", row.test,
                       row.method, row.c.batch, mega(c.weights), mega(c.kv_read), mega(c.kv_written),
                       mega(c.index_read), r.decode ? fmt::format("{:.0f}", row.result.attended_tokens) : "all",
                       mebibytes(row.result.memory.kv));
  }
  return out;
}

// Units that methods fetched to the device.
std::string recall_table(const BenchReport& r) {
  std::string out = fmt::format("\n{:<16} {:<10} {:>5} {:>9} {:>11} {:>12} {:>10} {:>14} {:>10} {:>11} {:>11}\n",
                                "recall", "", "batch", "turnover", "correction", "units", "missing", "from the host",
                                "MB", "corrected", "MiB there");
  for (const BenchLine& row : r.rows) {
    const BenchResult& b = row.result;
    const auto rate = [](float x) { return x < 0 ? std::string("-") : fmt::format("{:.2f}", x); };
    out +=
        fmt::format("{:<16} {:<10} {:>5} {:>9} {:>11} {:>12.0f} {:>10.1f} {:>14.1f} {:>10.2f} {:>10.1f}% {:>11.1f}\n",
                    row.test, row.method, row.c.batch, rate(row.c.turnover), rate(row.c.correction),
                    b.recall.selected_units, b.recall.missing_units, b.recall.recalled_units,
                    mega(b.recall.recalled_bytes), 100 * b.recall.correction_rate, mebibytes(b.memory.method));
  }
  return out;
}

std::string operations_table(const BenchReport& r) {
  std::string out =
      fmt::format("\n{:<16} {:<10} {:>5}", r.decode ? "ms, median step" : "s, median prompt", "", "batch");
  for (const Op op : kOps) out += fmt::format(" {:>20}", op_name(op));
  out += "\n";
  for (const BenchLine& row : r.rows) {
    out += fmt::format("{:<16} {:<10} {:>5}", row.test, row.method, row.c.batch);
    double total = 0;
    for (const double s : row.result.operations) total += s;
    for (const double s : row.result.operations)
      out += fmt::format(" {:>13.3f} ({:>3.0f}%)", r.decode ? 1e3 * s : s, 100 * s / total);
    out += "\n";
  }
  return out;
}

// Of a step on the device, in phases.
std::string phases_table(const BenchReport& r) {
  std::string out = fmt::format("\n{:<16} {:<10} {:>5}", "ms a step", "", "batch");
  for (const auto& [name, seconds] : r.rows.front().result.phases)
    out += fmt::format(" {:>{}}", name, phase_width(name));
  out += fmt::format(" {:>7} {:>9}\n", "sum", "untimed");
  for (const BenchLine& row : r.rows) {
    out += fmt::format("{:<16} {:<10} {:>5}", row.test, row.method, row.c.batch);
    double sum = 0;
    for (const auto& [name, seconds] : row.result.phases) {
      out += fmt::format(" {:>{}.3f}", 1e3 * seconds, phase_width(name));
      sum += seconds;
    }
    out += fmt::format(" {:>7.3f} {:>9.3f}\n", 1e3 * sum, 1e3 * row.result.step.median);
  }
  return out;
}

bool selects(const BenchLine& row) {
  return row.c.plan != nullptr && row.c.plan->selects();
}

bool drops(const BenchLine& row) {
  return row.c.plan != nullptr && row.c.plan->drops();
}

// What only some methods have.
std::string method_lines(const BenchReport& r) {
  std::string out;
  for (const BenchLine& row : r.rows) {
    const BenchResult& b = row.result;
    if (r.decode && selects(row))
      out += fmt::format("{}, {}: {:.1f} % of what heads read was selected in the same step\n", row.test, row.method,
                         100 * b.selected_share);
    if (!r.decode && drops(row))
      out += fmt::format("{}, {}: deciding what stays took {:.3f} ms, {:.2f} % of the prompt\n", row.test, row.method,
                         1e3 * b.prefill_end_seconds, 100 * b.prefill_end_seconds / b.prompt.median);
  }
  return out.empty() ? out : "\n" + out;
}

Json quantiles_json(const Quantiles& q) {
  return {{"median", q.median}, {"p10", q.p10},     {"p99", q.p99},
          {"mean", q.mean},     {"least", q.least}, {"deviation", q.deviation}};
}

Json row_json(const BenchReport& r, const BenchLine& row) {
  const BenchResult& b = row.result;
  Json out = {{"test", row.test}, {"method", row.method}, {"depth", row.c.depth}, {"batch", row.c.batch}};
  if (row.c.plan != nullptr) out["budget"] = row.c.plan->budget();
  out["tokens_per_second"] = b.tokens_per_second;
  out["tokens_per_second_deviation"] = b.tokens_per_second_deviation;
  out["step_seconds"] = quantiles_json(b.step);
  if (!r.decode) out["prompt_seconds"] = quantiles_json(b.prompt);
  out["bytes"] = {{"weights", b.cost.weights},
                  {"kv_read", b.cost.kv_read},
                  {"kv_written", b.cost.kv_written},
                  {"index_read", b.cost.index_read},
                  {"total", b.cost.bytes()}};
  out["operations"] = b.cost.operations;
  out["bandwidth"] = b.bandwidth;
  out["l3_bandwidth"] = b.l3_bandwidth > 0 ? Json(b.l3_bandwidth) : Json();
  out["product_rate"] = b.gemm_rate > 0 ? Json(b.gemm_rate) : Json();
  out["floor_seconds"] = b.floor_seconds;
  out["share_of_floor"] = b.share;
  Json times = Json::object();
  for (const Op op : kOps) times[std::string(op_name(op))] = b.operations[underlying(op)];
  out["operation_seconds"] = times;
  if (!b.phases.empty()) {
    Json phases = Json::object();
    for (const auto& [name, seconds] : b.phases) phases[std::string(name)] = seconds;
    out["phase_seconds"] = phases;
  }
  if (r.decode) out["attended_tokens"] = b.attended_tokens;
  if (r.device && row.c.plan != nullptr) {
    out["turnover"] = row.c.turnover >= 0 ? Json(row.c.turnover) : Json();
    out["correction"] = row.c.correction >= 0 ? Json(row.c.correction) : Json();
    out["recall"] = {{"selected_units", b.recall.selected_units},
                     {"missing_units", b.recall.missing_units},
                     {"recalled_units", b.recall.recalled_units},
                     {"recalled_bytes", b.recall.recalled_bytes},
                     {"correction_rate", b.recall.correction_rate}};
  }
  if (r.decode && !r.device && selects(row)) out["selected_share"] = b.selected_share;
  if (!r.decode && drops(row)) out["prefill_end_seconds"] = b.prefill_end_seconds;
  out["kv_bytes"] = b.memory.kv;
  out["method_bytes"] = b.memory.method;
  if (r.device) out["device_bytes"] = b.memory.device;
  out["activation_bytes"] = b.memory.activation;
  return out;
}

}  // namespace

std::string device_test_json(const char* test, const DeviceInfo& device, const std::string& model,
                             const Json& results) {
  return Json{{"test", test},
              {"version", version()},
              {"commit", build_commit()},
              {"command", command_line()},
              {"device", device_json(device)},
              {"model", model},
              {"results", results}}
      .dump();
}

std::vector<std::pair<std::string_view, double>> row_phases(const BenchReport& r, const BenchLine& row) {
  if (r.device) return row.result.phases;
  std::vector<std::pair<std::string_view, double>> out;
  for (const Op op : kOps) out.emplace_back(op_name(op), row.result.operations[underlying(op)]);
  return out;
}

std::string phases_svg(const BenchReport& r) {
  eval::BarChart chart{.title = fmt::format("A decode step by phase: {}", r.model), .x_title = "ms"};
  for (const BenchLine& row : r.rows) {
    chart.rows.push_back(fmt::format("{}, {}", row.method, row.test));
    if (row.c.batch > 1) chart.rows.back() += fmt::format(", {} sequences", row.c.batch);
    if (row.c.correction > 0) chart.rows.back() += fmt::format(", {:.0f} % corrected", 100 * row.c.correction);
    std::vector<double> values;
    std::vector<std::string> parts;
    for (const auto& [name, seconds] : row_phases(r, row)) parts.emplace_back(name), values.push_back(1e3 * seconds);
    chart.parts = parts;
    chart.values.push_back(values);
    if (r.device) chart.marks.push_back(1e3 * row.result.step.median);
  }
  if (r.device) chart.x_title = "ms; the line: the step when it is not timed by phase, with kernels overlapped";
  return eval::bar_chart_svg(chart);
}

std::string bench_table(const BenchReport& r) {
  std::string out = head(r) + main_table(r) + bytes_table(r);
  if (!r.device) {
    out += operations_table(r);
  } else if (std::any_of(r.rows.begin(), r.rows.end(), [](const BenchLine& row) { return row.c.plan != nullptr; })) {
    out += recall_table(r);
  }
  if (r.device && !r.rows.empty() && !r.rows.front().result.phases.empty()) out += phases_table(r);
  if (!r.device) out += method_lines(r);
  if (!r.rows.empty() && r.rows[0].result.l3_bandwidth > 0) {
    out += fmt::format(
        "\nThe weights fit into the L3 ({:.0f} MiB), which reads {:.1f} GB/s here, so shares above 100 % are "
        "possible.\n",
        mebibytes(r.machine.l3_bytes), r.rows[0].result.l3_bandwidth / 1e9);
  }
  return out;
}

std::string bench_json(const BenchReport& r) {
  Json results = Json::array();
  for (const BenchLine& row : r.rows) results.push_back(row_json(r, row));
  const Json json = {{"test", r.decode ? "decode" : "prefill"},
                     {"version", version()},
                     {"commit", build_commit()},
                     {"command", command_line()},
                     {"machine", machine_json(r.machine)},
                     {"device", r.device ? device_json(*r.device) : Json("cpu")},
                     {"model", r.model},
                     {"parameters", r.parameters},
                     {"weight_bytes", r.weight_bytes},
                     {"step_weight_bytes", r.step_weight_bytes},
                     {"weights", r.weights},
                     {"kv_cache_dtype", r.kv_dtype},
                     {"kv_store", r.kv_store},
                     {"threads", r.threads},
                     {"deterministic", r.deterministic},
                     {"steps", r.steps},
                     {"warmup", r.decode ? r.warmup : 0},
                     {"max_num_batched_tokens", r.chunk_tokens},
                     {"peak_memory_bytes", peak_memory_bytes()},
                     {"results", results}};
  return json.dump();
}

}  // namespace mneme::cli

// mneme plan: what fits on GPUs that are not at hand, what a decode step costs there, and what bounds it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/bench/plan/fit.h"
#include "apps/mneme/companion/companion.h"
#include "apps/mneme/doctor/doctor_commands.h"
#include "apps/mneme/kv_options.h"
#include "apps/mneme/measured/bench_model.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/engine/kv_method.h"
#include "src/engine/kv_plan.h"
#include "src/recipes/compile.h"
#include "src/recipes/device_form.h"

namespace mneme::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PlanCommand {
  BenchModelOptions model;
  KvOptions kv;
  std::string gpus = "1xH200", store = "auto";
  std::int64_t context = 128 << 10, sequences = 1;
  double turnover = 0.2, correction = 0.1, host_gib = 0;
  double memory_rate = 0, link_rate = 0;  // GB/s; 0: the card's
  KvDtype kv_dtype = KvDtype::kBf16;
  bool sweep = false, json = false;
};

struct Prepared {
  FitSetup fit;
  Card card;
  std::string store;
};

Prepared prepare(const PlanCommand& o, const BenchShape& shape, const Gpus& gpus, std::int64_t context) {
  Prepared p{.card = gpus.card};
  if (o.memory_rate > 0) p.card.memory_rate = o.memory_rate * 1e9;
  if (o.link_rate > 0) p.card.link_rate = o.link_rate * 1e9;
  FitSetup& f = p.fit;
  StepSetup& s = f.step;
  s.config = shape.config;
  f.weight_bytes = real(shape.weight_bytes);
  s.step_weight_bytes = real(shape.step_weight_bytes);
  s.ranks = std::min(gpus.n, 8);
  f.stages = gpus.n / s.ranks;
  if (shape.config.n_kv_heads % s.ranks != 0)
    fail(ErrorKind::kOption, "--gpus: {} KV heads cannot be shared out to {} ranks: expected a divisor",
         shape.config.n_kv_heads, s.ranks);
  s.kv_dtype = kv_dtype_of({.kv_cache_dtype = o.kv_dtype});
  if (o.kv.method != "full") s.plan = compile(recipe_of(o.kv), bench_method_shape(shape.config, s.kv_dtype));
  s.fused = !s.plan || device_form(*s.plan) != DeviceForm::kUnfused;
  s.context = context;
  s.sequences = o.sequences;
  s.turnover = o.turnover;
  s.correction = o.correction;
  f.host_memory_bytes = o.host_gib * 1024 * 1024 * 1024;
  s.store = o.store == "host" ? KvStore::kHost : KvStore::kDevice;
  if (o.store == "auto" && !fits(f, p.card)) s.store = KvStore::kHost;
  p.store = s.store == KvStore::kHost ? "host" : "device";
  return p;
}

Json parts_json(const StepParts& p) {
  return {{"weights", p.weights},     {"attention", p.attention}, {"index", p.index},       {"launches", p.launches},
          {"selection", p.selection}, {"recall", p.recall},       {"all_reduce", p.reduce}, {"total", p.total()}};
}

Json plan_json(const Prepared& p, const PlanCommand& o, const Gpus& gpus) {
  const Throughput t = throughput(p.fit, p.card);
  const Footprint m = footprint(p.fit);
  Json json;
  json["model"] = bench_model_name(o.model);
  json["gpus"] = gpus.n;
  json["card"] = p.card.name;
  json["tensor_parallel"] = p.fit.step.ranks;
  json["pipeline_parallel"] = p.fit.stages;
  json["context"] = p.fit.step.context;
  json["sequences"] = p.fit.step.sequences;
  json["method"] = o.kv.method;
  json["kv_store"] = p.store;
  json["kv_cache_dtype"] = dtype_name(p.fit.step.kv_dtype);
  json["fits"] = fits(p.fit, p.card);
  json["most_sequences"] = most_sequences(p.fit, p.card);
  json["bytes_per_gpu"] = {
      {"weights", m.weights},   {"kv", m.kv},        {"index", m.index},           {"slots", m.slots},
      {"other", m.activations}, {"all", m.device()}, {"card", p.card.memory_bytes}};
  json["host_bytes"] = m.host_kv;
  json["stage_seconds"] = parts_json(t.step);
  json["bound"] = t.step.bound();
  json["token_seconds"] = t.token_seconds;
  json["tokens_per_second"] = t.tokens_per_second;
  return json;
}

std::string gb(double bytes) {
  return fmt::format("{:.1f} GB", bytes / 1e9);
}

void print_plan(const Prepared& p, const PlanCommand& o, const Gpus& gpus) {
  const Throughput t = throughput(p.fit, p.card);
  const Footprint m = footprint(p.fit);
  const StepSetup& s = p.fit.step;
  fmt::print("{} on {} x {}: tensor parallel {}, pipeline parallel {}\n", bench_model_name(o.model), gpus.n,
             p.card.name, s.ranks, p.fit.stages);
  fmt::print("{} sequences of {} tokens, method {}, KV cache in {}\n\n", s.sequences, grouped(s.context), o.kv.method,
             s.store == KvStore::kHost ? "in host memory" : "on the GPUs");
  const std::int64_t most = most_sequences(p.fit, p.card);
  fmt::print("each GPU    {} of {}: weights {}, KV cache {}, index {}, cache slots {}, other {}\n", gb(m.device()),
             gb(p.card.memory_bytes), gb(m.weights), gb(m.kv), gb(m.index), gb(m.slots), gb(m.activations));
  if (s.store == KvStore::kHost) fmt::print("each host   {} for the KV cache\n", gb(m.host_kv));
  fmt::print("fits        {}\n", fits(p.fit, p.card) ? fmt::format("yes, up to {} sequences", grouped(most))
                                 : most > 0          ? fmt::format("no: up to {} sequences", grouped(most))
                                                     : "no, not even one sequence");
  const StepParts& step = t.step;
  fmt::print("\na step{}  {:.2f} ms, bound by {}\n", p.fit.stages > 1 ? " of a stage" : "", step.total() * 1e3,
             step.bound());
  for (const auto& [name, seconds] : {std::pair{"weights", step.weights},
                                      {"attention", step.attention},
                                      {"index", step.index},
                                      {"launches", step.launches},
                                      {"selection", step.selection},
                                      {"recall", step.recall},
                                      {"all-reduce", step.reduce}})
    if (seconds > 0) fmt::print("  {:<10}{:7.2f} ms\n", name, seconds * 1e3);
  if (step.link_bytes > 0) fmt::print("  {} from the host in each step and GPU\n", gb(step.link_bytes));
  fmt::print("\n{:.1f} ms between two tokens of a sequence, {:.0f} tokens a second of all\n", t.token_seconds * 1e3,
             t.tokens_per_second);
  if (!p.card.measured) fmt::print("rates of {} are its data sheet's, not measured\n", p.card.name);
}

// Cost and throughput against context for 1 to 64 GPUs, as many sequences as fit up to --sequences.
Json sweep(const PlanCommand& o, const BenchShape& shape, const Card& card) {
  Json rows = Json::array();
  for (const int n : {1, 2, 4, 8, 16, 32, 64}) {
    for (std::int64_t context = 8 << 10; context <= 4 << 20; context *= 2) {
      const Gpus gpus{.card = card, .n = n};
      Prepared p = prepare(o, shape, gpus, context);
      p.fit.step.sequences = std::min(o.sequences, most_sequences(p.fit, p.card));
      if (p.fit.step.sequences > 0) rows.push_back(plan_json(p, o, gpus));
    }
  }
  return rows;
}

int plan(const PlanCommand& o) {
  expect_method(o.kv);
  const BenchShape shape = read_bench_shape(o.model);
  const Gpus gpus = parse_gpus(o.gpus);
  if (o.sweep) {
    fmt::print("{}\n", sweep(o, shape, gpus.card).dump(1));
    return 0;
  }
  const Prepared p = prepare(o, shape, gpus, o.context);
  if (o.json) {
    fmt::print("{}\n", plan_json(p, o, gpus).dump(1));
  } else {
    print_plan(p, o, gpus);
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, int& code) {
  auto command = std::make_shared<PlanCommand>();
  CLI::App* c = app.add_subcommand(std::string(kPlanCompanion.command), std::string(kPlanCompanion.summary));
  add_bench_model_options(*c, command->model);
  c->add_option("--gpus", command->gpus, "How many of which: 8xH100; beyond 8 in whole hosts, one pipeline stage each")
      ->type_name("NxCARD")
      ->capture_default_str();
  c->add_option("--context", command->context, "Tokens of each sequence: 32768, 128K, 1M")
      ->type_name("TOKENS")
      ->default_str("128K")
      ->transform(tokens(1, std::numeric_limits<std::int32_t>::max()));
  c->add_option("--sequences", command->sequences, "Decoded together")
      ->capture_default_str()
      ->check(whole_number(1, 1 << 16));
  c->add_option("--kv-store", command->store, "Where to store the KV cache; auto: on the GPUs if it fits")
      ->capture_default_str()
      ->check(one_of({"auto", "device", "host"}));
  add_named(*c, "--kv-cache-dtype", command->kv_dtype, parse_kv_dtype,
            "Type of the KV cache: bf16, f16, or in half the memory int8 or fp8")
      ->type_name("TYPE")
      ->check(one_of({"bf16", "f16", "int8", "fp8"}));
  c->add_option("--turnover", command->turnover, "Share of selected units that a step replaces")
      ->capture_default_str()
      ->check(number(0, 1));
  c->add_option("--correction", command->correction, "Share of speculative selections that are made again")
      ->capture_default_str()
      ->check(number(0, 1));
  c->add_option("--host-gib", command->host_gib, "Memory of a host for the KV cache (default: as much as needed)")
      ->type_name("SIZE")
      ->transform(gib(0, 1e6));
  c->add_option("--memory-rate", command->memory_rate, "Of the GPU's memory, as mneme doctor measured it")
      ->type_name("GB/S")
      ->check(number(1, 1e6));
  c->add_option("--link-rate", command->link_rate, "Of the GPU's link to the host, as mneme doctor measured it")
      ->type_name("GB/S")
      ->check(number(0.1, 1e5));
  c->add_flag("--sweep", command->sweep, "JSON for 1 to 64 of these GPUs and contexts of 8K to 4M")->group("Output");
  c->add_flag("--json", command->json, "JSON instead of text")->group("Output");
  add_kv_options(*c, command->kv, "--kv-method,--method");
  c->footer("Example: mneme plan --shape llama-3.1-70b --gpus 8xH100 --context 1M --sequences 32 --method freekv");
  c->callback([command, &code] { code = plan(*command); });
}

}  // namespace mneme::cli

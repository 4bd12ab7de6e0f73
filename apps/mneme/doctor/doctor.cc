// mneme doctor: what this machine can do, and what a model would make of it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/bandwidth.h"
#include "apps/bench/machine.h"
#include "apps/bench/step_cost.h"
#include "apps/mneme/answer_writer.h"
#include "apps/mneme/commit.h"
#include "apps/mneme/companion/companion.h"
#include "apps/mneme/doctor/doctor_commands.h"
#include "apps/mneme/doctor/doctor_device.h"
#include "apps/mneme/doctor/recommend.h"
#include "apps/mneme/measured/bench_model.h"
#include "apps/mneme/measured/machine_json.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "mneme/mneme.h"
#include "src/base/ratio.h"
#include "src/engine/kv_plan.h"
#include "src/kv/page_pool.h"
#include "src/model/shapes.h"

namespace mneme::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kReadPasses = 24, kGemmPasses = 4;
constexpr std::int64_t kChunkTokens = kStepRows;  // of a prefill step
constexpr std::int64_t kGemmWidth = 2048;

struct DoctorOptions {
  BenchModelOptions model;
  std::int64_t context = 0;
  std::int64_t batch = 1;
  KvDtype kv_dtype = KvDtype::kBf16;
  int threads = 0;
  bool json = false;
};

struct Rates {
  double one_thread = 0, all_threads = 0, l3 = 0;  // bytes a second
  std::array<std::pair<DType, double>, 4> gemms = {
      {{DType::kBF16, 0}, {DType::kQ8_0, 0}, {DType::kQ4_0, 0}, {DType::kQ4_1, 0}}};

  double gemm(DType type) const {
    for (const auto& [t, rate] : gemms)
      if (t == type) return rate;
    return 0;
  }
};

Rates measure(const Machine& machine, int threads) {
  Rates rates;
  const std::size_t bytes = memory_probe_bytes(machine.l3_bytes, machine.memory_limit);
  {
    ThreadPool one(1);
    rates.one_thread = ReadProbe(bytes, one).measure(kReadPasses);
  }
  ThreadPool pool(threads, Pinning::kPinned);
  rates.all_threads = ReadProbe(bytes, pool).measure(kReadPasses);
  if (machine.l3_bytes > 0) rates.l3 = ReadProbe(l3_probe_bytes(machine.l3_bytes), pool).measure(8 * kReadPasses);
  for (auto& [type, rate] : rates.gemms) rate = gemm_rate(type, kChunkTokens, kGemmWidth, kGemmPasses, {.pool = &pool});
  return rates;
}

struct Outlook {
  BenchShape shape;
  std::int64_t parameters = 0, context = 0, batch = 1;
  DType kv_dtype = DType::kBF16;
  std::int64_t kv_per_token = 0, kv_bytes = 0, activation_bytes = 0, needed = 0;
  bool fits = false;
  double decode_empty = 0, decode_full = 0;  // tokens/s of all sequences: nothing in the cache, all of the context
  double prefill = 0;                        // tokens/s over a prompt of the context; 0: the type was not measured
};

// What this process may have, and what is free of it now: more would end by the kernel's out-of-memory killer.
std::int64_t usable_bytes(const Machine& m) {
  return m.memory_available > 0 ? std::min(m.memory_limit, m.memory_available) : m.memory_limit;
}

// Upper bounds: memory read as fast as it was, GEMMs as fast as they were, attention of prompts as GEMMs.
Outlook outlook_of(const BenchShape& shape, const DoctorOptions& o, const Machine& machine, const Rates& rates) {
  Outlook out{.shape = shape};
  const ModelConfig& c = out.shape.config;
  out.parameters = parameter_count(c);
  out.context = o.context > 0 ? o.context : c.max_context;
  out.batch = o.batch;
  out.kv_dtype = kv_dtype_of({.kv_cache_dtype = o.kv_dtype});
  const KvShape kv = kv_shape_of(c, out.kv_dtype);
  out.kv_per_token = static_cast<std::int64_t>(kv.bytes_per_token());
  out.kv_bytes = kv_bytes(out.shape, out.context, out.batch, out.kv_dtype);
  out.activation_bytes = activation_estimate(c, std::max(kChunkTokens, out.batch), out.batch);
  out.needed = out.shape.weight_bytes + out.kv_bytes + out.activation_bytes;
  out.fits = out.needed <= usable_bytes(machine);

  const auto step = real(out.shape.step_weight_bytes);
  std::int64_t all_layers = 0;  // tokens that a step attends, over layers
  for (std::int64_t l = 0; l < c.n_kv_layers(); ++l)
    all_layers += c.window_of(l) > 0 ? std::min(out.context, c.window_of(l)) : out.context;
  const std::int64_t seen = all_layers / c.n_kv_layers();
  const auto batch = real(out.batch);
  out.decode_empty = batch * rates.all_threads / step;
  out.decode_full = batch * rates.all_threads / (step + batch * real(seen) * real(out.kv_per_token));
  const double matrices = 2.0 * real(out.parameters - (c.tied_embeddings ? 1 : 2) * c.vocab * c.hidden);
  const double attention = 4.0 * real(c.n_kv_layers() * c.n_heads * c.head_dim) * real(seen) / 2;
  out.prefill = rates.gemm(out.shape.weights) / (matrices + attention);
  return out;
}

std::string memory_text(std::int64_t bytes) {
  return bytes < (std::int64_t{1} << 30) ? fmt::format("{:.1f} MiB", mebibytes(bytes))
                                         : fmt::format("{:.2f} GiB", gibibytes(bytes));
}

std::string machine_text(const Machine& m, const Rates& r, int threads) {
  std::string out;
  const auto line = [&out](std::string_view what, const std::string& value) {
    out += fmt::format("{:<22} {}\n", what, value);
  };
  line("CPU", m.cpu.empty() ? "unknown" : m.cpu);
  line("cores", fmt::format("{} ({} of {} logical CPUs allowed); {} NUMA node{}", m.cores, m.cpus_allowed,
                            m.cpus_online, m.numa_nodes, m.numa_nodes == 1 ? "" : "s"));
  line("instruction sets",
       m.features.empty() ? "none that the kernels look for" : fmt::format("{}", fmt::join(m.features, " ")));
  line("L3", m.l3_bytes > 0 ? memory_text(m.l3_bytes) : "unknown");
  line("memory", fmt::format("{}, {} available; this process may have {}", memory_text(m.memory_bytes),
                             memory_text(m.memory_available), memory_text(m.memory_limit)));
  line("reads, 1 thread", fmt::format("{:.1f} GB/s", r.one_thread / 1e9));
  if (threads > 1) line(fmt::format("reads, {} threads", threads), fmt::format("{:.1f} GB/s", r.all_threads / 1e9));
  if (r.l3 > 0) line("reads from the L3", fmt::format("{:.1f} GB/s", r.l3 / 1e9));
  for (const auto& [type, rate] : r.gemms)
    line(fmt::format("GEMM, {}", dtype_name(type)), fmt::format("{:.0f} Gop/s", rate / 1e9));
  return out;
}

std::string outlook_text(const Outlook& o, const Machine& m, const std::string& name) {
  std::string out = "\n";
  const auto line = [&out](std::string_view what, const std::string& value) {
    out += fmt::format("{:<22} {}\n", what, value);
  };
  line("model",
       fmt::format("{}, {:.1f} M parameters, {}", name, ratio(o.parameters, 1e6), dtype_name(o.shape.weights)));
  line("weights", memory_text(o.shape.weight_bytes));
  line("KV cache",
       fmt::format("{}: {} sequence{} of {} tokens, {} bytes a token ({})", memory_text(o.kv_bytes), o.batch,
                   o.batch == 1 ? "" : "s", grouped(o.context), grouped(o.kv_per_token), dtype_name(o.kv_dtype)));
  line("activations", memory_text(o.activation_bytes));
  line("needed", fmt::format("{}: {}", memory_text(o.needed),
                             o.fits ? "fits" : fmt::format("does not fit into {}", memory_text(usable_bytes(m)))));
  line("decode, at most",
       fmt::format("{:.1f} tokens/s at the start, {:.1f} with the context full", o.decode_empty, o.decode_full));
  if (o.prefill > 0) line("prefill, at most", prefill_text(o.prefill, o.context));
  return out;
}

Json rates_json(const Rates& r, int threads) {
  Json gemms = Json::object();
  for (const auto& [type, rate] : r.gemms) gemms[std::string(dtype_name(type))] = rate;
  return {{"threads", threads},
          {"read_1_thread", r.one_thread},
          {"read_all_threads", r.all_threads},
          {"read_l3", r.l3 > 0 ? Json(r.l3) : Json()},
          {"gemm", gemms}};
}

Json outlook_json(const Outlook& o, const std::string& name) {
  return {{"name", name},
          {"parameters", o.parameters},
          {"weights", dtype_name(o.shape.weights)},
          {"context", o.context},
          {"batch", o.batch},
          {"weight_bytes", o.shape.weight_bytes},
          {"step_weight_bytes", o.shape.step_weight_bytes},
          {"kv_bytes_per_token", o.kv_per_token},
          {"kv_bytes", o.kv_bytes},
          {"activation_bytes", o.activation_bytes},
          {"needed_bytes", o.needed},
          {"fits", o.fits},
          {"decode_tokens_per_second_at_start", o.decode_empty},
          {"decode_tokens_per_second_when_full", o.decode_full},
          {"prefill_tokens_per_second", o.prefill > 0 ? Json(o.prefill) : Json()}};
}

DeviceOutlooks on_device(const Outlook& o, const DoctorDevice& device, const Machine& machine) {
  return device_outlooks(device, o.shape, o.context, o.batch, usable_bytes(machine), o.kv_dtype);
}

// For the first GPU, which --device cuda takes; without one, for the CPU.
Recommendation recommend(const Outlook& o, const std::vector<DoctorDevice>& devices, const Machine& machine,
                         const Rates& rates) {
  const Wanted wanted{.context = o.context, .sequences = o.batch, .host_bytes = usable_bytes(machine)};
  return devices.empty() ? recommend_on_cpu(o.shape, wanted, rates.all_threads)
                         : recommend_on_device(devices.front(), o.shape, wanted);
}

int doctor(const DoctorOptions& o) {
  std::optional<BenchShape> shape;  // what is wrong with it is said before anything is measured
  if (o.model.given()) shape = read_bench_shape(o.model);
  const Machine machine = read_machine();
  const int threads = o.threads > 0 ? o.threads : machine.cpus_allowed;
  const Rates rates = measure(machine, threads);
  const std::vector<DoctorDevice> devices = look_at_devices();
  std::optional<Outlook> outlook;
  if (shape) outlook = outlook_of(*shape, o, machine, rates);
  const std::string name = shape ? bench_model_name(o.model) : "";

  AnswerWriter out;
  if (o.json) {
    Json json = {{"version", version()},
                 {"commit", build_commit()},
                 {"machine", machine_json(machine)},
                 {"measured", rates_json(rates, threads)},
                 {"devices", devices_json(devices)}};
    if (outlook) {
      json["model"] = outlook_json(*outlook, name);
      for (const DoctorDevice& d : devices)
        json["model"]["on_devices"].push_back(device_outlook_json(d, on_device(*outlook, d, machine)));
      json["model"]["recommended"] = recommendation_json(recommend(*outlook, devices, machine, rates));
    }
    out.write(json.dump());
  } else {
    out.write(machine_text(machine, rates, threads));
    out.write(devices_text(devices));
    if (outlook) {
      out.write(outlook_text(*outlook, machine, name));
      for (const DoctorDevice& d : devices) out.write(device_outlook_text(d, on_device(*outlook, d, machine)));
      out.write("\n" + recommendation_text(recommend(*outlook, devices, machine, rates)));
    }
  }
  out.end_line();
  return 0;
}

}  // namespace

void add_doctor(CLI::App& app, int& code) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* c = app.add_subcommand(std::string(kDoctorCompanion.command), std::string(kDoctorCompanion.summary));
  add_bench_model_options(*c, options->model);
  const auto group = [](CLI::Option* option) { option->group("What to look at"); };
  group(c->add_option("-c,--max-model-len,--ctx-size", options->context,
                      "Context length: prompt and answer (default: the model's)")
            ->type_name("TOKENS")
            ->transform(tokens(1, std::numeric_limits<std::int32_t>::max())));
  group(c->add_option("--batch", options->batch, "Concurrent sequences")
            ->capture_default_str()
            ->check(whole_number(1, 4096)));
  group(add_named(*c, "--kv-cache-dtype", options->kv_dtype, parse_kv_dtype,
                  "Type of the KV cache: bf16, f16, or in half the memory int8 or fp8")
            ->type_name("TYPE")
            ->check(one_of({"bf16", "f16", "int8", "fp8"})));
  group(c->add_option("-t,--threads", options->threads, "Compute threads (default: one per CPU)")
            ->check(whole_number(1, 1024)));
  group(c->add_flag("--json", options->json, "Print one JSON object"));
  c->footer("Measures rates for some seconds. Example: mneme doctor --shape llama-3.1-8b --weights q8_0 -c 32768");
  c->callback([options, &code] { code = doctor(*options); });
}

}  // namespace mneme::cli

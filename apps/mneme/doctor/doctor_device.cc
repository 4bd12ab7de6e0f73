#include "apps/mneme/doctor/doctor_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/bench/step_cost.h"
#include "apps/mneme/measured/machine_json.h"
#include "src/base/ratio.h"
#include "src/engine/kv_plan.h"
#include "src/engine/memory_limit.h"
#include "src/kv/page_pool.h"
#include "src/model/shapes.h"

namespace mneme::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kBudget = 2048, kSlots = kBudget * 5 / 4;

std::string gib_text(std::int64_t bytes) {
  return fmt::format("{:.2f} GiB", gibibytes(bytes));
}

// Bytes of a shape's weights by where they stand, shared out by numbers of parameters.
struct WeightShares {
  std::vector<LayerWeightBytes> layers;
  std::int64_t outer = 0;  // embedding and head
};
WeightShares shares_of(const BenchShape& shape) {
  const ModelConfig& c = shape.config;
  const double byte = real(shape.weight_bytes) / real(parameter_count(c));
  const auto bytes = [byte](std::int64_t n) { return static_cast<std::int64_t>(real(n) * byte); };
  WeightShares shares{.layers = {}, .outer = bytes((c.tied_embeddings ? 1 : 2) * c.vocab * c.hidden)};
  const std::int64_t experts = bytes(3 * c.experts.n * c.experts.ffn * c.hidden);
  const std::int64_t others = (shape.weight_bytes - shares.outer) / c.n_layers - experts;
  shares.layers.assign(static_cast<std::size_t>(c.n_layers), {.experts = experts, .others = others});
  return shares;
}

std::string placement_text(const DeviceSplit& s) {
  if (s.placement.expert_layers == s.layers) return fmt::format("all {} layers on the device", s.layers);
  if (s.placement.layers == s.layers)
    return fmt::format("experts of {} of {} layers in host memory", s.layers - s.placement.expert_layers, s.layers);
  return fmt::format("{} of {} layers in host memory", s.layers - s.placement.layers, s.layers);
}

}  // namespace

std::vector<DoctorDevice> look_at_devices() {
  std::vector<DoctorDevice> devices;
  for (int i = 0; i < device_count(); ++i)
    devices.push_back({.number = i, .info = device_info(i), .rates = measure_device(i)});
  return devices;
}

std::int64_t kv_bytes(const BenchShape& shape, std::int64_t context, std::int64_t sequences, DType dtype,
                      bool in_file) {
  const KvShape kv = kv_shape_of(shape.config, dtype);
  KvWindows windows = in_file ? KvWindows{} : kv_windows_of(shape.config);
  windows.step_tokens = kStepRows;
  const std::int64_t blocks = blocks_of(kv, windows, context) + kv.blocks_per_page();
  return blocks * static_cast<std::int64_t>(kv.page_bytes()) * sequences;
}

DeviceOutlooks device_outlooks(const DoctorDevice& device, const BenchShape& shape, std::int64_t context,
                               std::int64_t batch, std::int64_t host_bytes, DType kv_dtype) {
  const ModelConfig& c = shape.config;
  const KvShape kv_shape = kv_shape_of(c, kv_dtype);
  const auto layer_token = static_cast<std::int64_t>(kv_shape.token_bytes()) * c.n_kv_heads,
             wide_layer_token = 4 * c.n_kv_heads * c.head_dim;
  const KvWindows windows = kv_windows_of(c);
  const std::int64_t n_windows = windows.n_layers(), n_whole = c.n_layers - n_windows;
  const std::int64_t pages = pages_of(context) + std::int64_t{1};
  const std::int64_t kv = kv_bytes(shape, context, batch, kv_dtype);
  const std::int64_t of_windows = n_windows * std::min<std::int64_t>(context, windows.tokens) * layer_token * batch;
  const std::int64_t fixed = shape.weight_bytes + activation_estimate(c, kStepRows, batch) + kReservedDeviceBytes;
  const auto step = real(shape.step_weight_bytes), full = real(n_whole * context * layer_token * batch + of_windows);
  const auto n = real(batch);
  DeviceOutlooks o;
  const auto close = [&](DeviceOutlook& x, double seconds) {
    x.fits = x.device_needed <= static_cast<std::int64_t>(device.info.memory_bytes) &&
             x.host_needed <= std::max<std::int64_t>(0, host_bytes - kReservedHostBytes);
    x.tokens_per_second = n / seconds;
  };
  o.device.device_needed = fixed + kv;
  close(o.device, (step + full) / device.rates.read);
  // A prompt's layer, twice; and in 16 bits too.
  o.host.device_needed =
      fixed + pages * kPageTokens * (2 * layer_token + (is_eight_bit(kv_dtype) ? wide_layer_token : 0));
  o.host.host_needed = kv;
  close(o.host, step / device.rates.read + full / device.rates.host_to_device);
  // All of one layer and the windows, and of the others slots and the boxes of pages, each of which is as large as a
  // token of 16 bits.
  const std::int64_t others = std::max<std::int64_t>(n_whole - 1, 0), boxes = pages * others * wide_layer_token * batch;
  o.selected.device_needed = o.host.device_needed + pages * kPageTokens * layer_token * batch + of_windows +
                             kSlots * others * layer_token * batch + boxes;
  o.selected.host_needed = kv;
  const double read = real(std::min(context, kBudget) * others * layer_token * batch + boxes + of_windows) +
                      real(context * layer_token * batch);
  close(o.selected, (step + read) / device.rates.read);

  const WeightShares shares = shares_of(shape);
  const std::int64_t beside = o.selected.device_needed - shape.weight_bytes + shares.outer;
  o.split.layers = c.n_layers;
  o.split.placement = fitting_layers(shares.layers, static_cast<std::int64_t>(device.info.memory_bytes) - beside);
  const double used = c.experts.n == 0 ? 0.0 : ratio(c.experts.n_used, c.experts.n);
  double link = 0;
  o.split.outlook.host_needed = kv;
  for (std::int64_t l = 0; l < c.n_layers; ++l) {
    const auto [experts, rest] = shares.layers[static_cast<std::size_t>(l)];
    if (o.split.placement.others_on_host(l)) o.split.outlook.host_needed += rest, link += real(rest);
    if (o.split.placement.experts_on_host(l)) o.split.outlook.host_needed += experts, link += used * real(experts);
  }
  o.split.outlook.device_needed = o.selected.device_needed - (o.split.outlook.host_needed - kv);
  close(o.split.outlook, (step - link + read) / device.rates.read + link / device.rates.host_to_device);
  return o;
}

std::string kernels_text(int code_version) {
  if (code_version == 0) return "none: this build was not compiled for this GPU";
  return fmt::format("compiled for {}.{}: {}", code_version / 10, code_version % 10,
                     code_version >= 90 ? "bulk copies, clusters, programmatic dependent launch" : "portable forms");
}

std::string devices_text(const std::vector<DoctorDevice>& devices) {
  if (devices.empty()) return fmt::format("{:<22} {}\n", "GPU", "none: " + no_device_reason());
  std::string out;
  for (const DoctorDevice& d : devices) {
    const auto line = [&](std::string_view what, const std::string& value) {
      out += fmt::format("{:<22} {}\n", what, value);
    };
    line(fmt::format("GPU {}", d.number),
         fmt::format("{}, compute capability {}.{}, driver {}, {}{}", d.info.name, d.info.compute_major,
                     d.info.compute_minor, d.info.driver, d.info.pci_bus,
                     d.info.numa_node >= 0 ? fmt::format(", NUMA node {}", d.info.numa_node) : ""));
    line("  kernels", kernels_text(d.info.code_version));
    line("  memory", fmt::format("{}, {} free, read at {:.0f} GB/s", gib_text(d.info.memory_bytes),
                                 gib_text(d.info.free_bytes), d.rates.read / 1e9));
    line("  link", fmt::format("{:.1f} GB/s from the host, {:.1f} GB/s to it", d.rates.host_to_device / 1e9,
                               d.rates.device_to_host / 1e9));
  }
  return out;
}

std::string device_outlook_text(const DoctorDevice& device, const DeviceOutlooks& o) {
  std::string out;
  const auto line = [&](std::string_view what, const DeviceOutlook& x) {
    out += fmt::format("{:<22} {} of the device, {} of the host: {}; at most {:.1f} tokens/s with the context full\n",
                       what, gib_text(x.device_needed), gib_text(x.host_needed), x.fits ? "fits" : "does not fit",
                       x.tokens_per_second);
  };
  out += fmt::format("\nOn GPU {}:\n", device.number);
  line("--kv-store device", o.device);
  line("--kv-store host", o.host);
  line("  and freekv, 2048", o.selected);
  if (!o.selected.fits && o.split.outlook.fits) line("  and --gpu-layers auto", o.split.outlook);
  out += fmt::format("{:<22} {}\n", "weights", placement_text(o.split));
  return out;
}

Json devices_json(const std::vector<DoctorDevice>& devices) {
  Json out = Json::array();
  for (const DoctorDevice& d : devices) {
    Json one = device_json(d.info);
    one["free_bytes"] = d.info.free_bytes;
    one["pci_bus"] = d.info.pci_bus;
    one["numa_node"] = d.info.numa_node;
    one["read"] = d.rates.read;
    one["host_to_device"] = d.rates.host_to_device;
    one["device_to_host"] = d.rates.device_to_host;
    out.push_back(one);
  }
  return out;
}

Json device_outlook_json(const DoctorDevice& device, const DeviceOutlooks& o) {
  const auto one = [](const DeviceOutlook& x) {
    return Json{{"device_bytes", x.device_needed},
                {"host_bytes", x.host_needed},
                {"fits", x.fits},
                {"decode_tokens_per_second_when_full", x.tokens_per_second}};
  };
  return {{"device", device.number},
          {"kv_store_device", one(o.device)},
          {"kv_store_host", one(o.host)},
          {"freekv_2048", one(o.selected)},
          {"gpu_layers_auto",
           {{"layers", o.split.placement.layers},
            {"expert_layers", o.split.placement.expert_layers},
            {"freekv_2048", one(o.split.outlook)}}}};
}

}  // namespace mneme::cli

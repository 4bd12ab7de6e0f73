#include "apps/mneme/doctor/recommend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "apps/bench/plan/fit.h"
#include "apps/bench/step_cost.h"
#include "src/base/ratio.h"
#include "src/engine/kv_method.h"
#include "src/engine/kv_plan.h"
#include "src/engine/memory_limit.h"
#include "src/model/shapes.h"
#include "src/recipes/device_form.h"

namespace mneme::cli {
namespace {

constexpr double kGib = 1 << 30;

// Null where the model has no layer that a method may select in.
std::shared_ptr<const Plan> method_plan(const BenchShape& shape, DType dtype) {
  const Recipe recipe = recipe_of({.method = std::string(auto_method(true, true))});
  const MethodShape of = bench_method_shape(shape.config, dtype);
  return check(recipe, of).empty() ? compile(recipe, of) : nullptr;
}

// Where keys and values lie, how, and whether a method reads them.
struct Form {
  KvStore store = KvStore::kDevice;
  DType dtype = DType::kBF16;
  std::shared_ptr<const Plan> plan;  // null: full attention
};

FitSetup setup_of(const Form& form, const BenchShape& shape, const Wanted& w) {
  FitSetup f;
  f.weight_bytes = real(shape.weight_bytes);
  f.chunk_tokens = kStepRows;
  f.host_memory_bytes = real(std::max<std::int64_t>(1, w.host_bytes - kReservedHostBytes));
  f.step.config = shape.config;
  f.step.step_weight_bytes = real(shape.step_weight_bytes);
  f.step.plan = form.plan;
  f.step.fused = !form.plan || device_form(*form.plan) != DeviceForm::kUnfused;
  f.step.store = form.store;
  f.step.kv_dtype = form.dtype;
  f.step.context = w.context;
  f.step.sequences = w.sequences;
  return f;
}

Card card_of(const DoctorDevice& d) {
  return {.name = d.info.name,
          .memory_bytes = real(static_cast<std::int64_t>(d.info.memory_bytes)),
          .memory_rate = d.rates.read,
          .link_rate = d.rates.host_to_device,
          .hopper_kernels = d.info.code_version >= 90,
          .measured = true};
}

// Host memory for what sequences lose on the device: four times what lies there, and at most half of what is free. GiB.
std::int64_t host_tier_gib(const Form& form, const BenchShape& shape, const Wanted& w) {
  if (form.store != KvStore::kDevice || kv_windows_of(shape.config).n_layers() > 0) return 0;
  return std::min(4 * kv_bytes(shape, w.context, w.sequences, form.dtype), (w.host_bytes - kReservedHostBytes) / 2) /
         (1 << 30);
}

std::vector<std::string> options_of(const Form& form, const BenchShape& shape, const Wanted& w) {
  std::vector<std::string> options = {"--device cuda",
                                      form.store == KvStore::kHost ? "--kv-store host" : "--kv-store device",
                                      fmt::format("--kv {}", form.plan ? auto_method(true, true) : "full"),
                                      fmt::format("--kv-cache-dtype {}", dtype_name(form.dtype)),
                                      fmt::format("--max-num-seqs {}", w.sequences),
                                      fmt::format("-c {}", w.context)};
  if (w.sequences > 1)
    options.push_back(fmt::format("--kv-offloading-size {:.0f}",
                                  std::ceil(real(kv_bytes(shape, w.context, w.sequences, form.dtype)) / kGib)));
  if (const std::int64_t gib = host_tier_gib(form, shape, w); gib > 0)
    options.push_back(fmt::format("--kv-host-gib {}", gib));
  return options;
}

std::string reason_of(const Form& form, const Wanted& asked, std::int64_t sequences) {
  const std::string less =
      sequences < asked.sequences ? fmt::format("{} sequences do not fit, {} do: ", asked.sequences, sequences) : "";
  const std::string_view bits = is_eight_bit(form.dtype) ? " in 8 bits" : "";
  if (!form.plan) return fmt::format("{}the KV cache fits the device{}, and every step reads all of it", less, bits);
  return fmt::format("{}the KV cache{} does not fit the device; a method fetches what a step reads", less, bits);
}

// A method's step where full attention fits too.
std::string faster_of(const Form& form, const BenchShape& shape, const Wanted& w, const Card& card, double now) {
  const auto plan = method_plan(shape, form.dtype);
  if (form.plan || !plan) return "";
  const FitSetup f = setup_of({form.store, form.dtype, plan}, shape, w);
  if (!fits(f, card)) return "";
  const double then = throughput(f, card).tokens_per_second;
  return then < 1.1 * now ? ""
                          : fmt::format("--kv {}: reads a part of them, about {} tokens/s", auto_method(true, true),
                                        rate_text(then));
}

// ---- on the CPU

constexpr double kSlow = 1.0;   // tokens/s per sequence; full attention below it is too slow to read
constexpr double kGain = 1.2;   // of a method over full attention, below which exact answers are worth more
constexpr double kHour = 3600;  // seconds

// What stays free beside what is computed here: the program itself, and whatever else starts on the machine.
std::int64_t margin_of(std::int64_t host_bytes) {
  return std::max<std::int64_t>(1 << 30, host_bytes / 20);
}

// Keys, values and index that a step of one sequence reads under a plan, of `context` tokens.
double method_bytes(const Plan& plan, const BenchShape& shape, std::int64_t context) {
  const MethodShape& of = plan.shape;
  const double token = real(of.attention().token_bytes()) * of.n_kv_heads,
               index = plan.index_bytes_per_token() * of.n_kv_heads;
  double bytes = 0;
  for (std::int32_t l = 0; l < shape.config.n_layers; ++l) {
    const std::int64_t window = of.window_of(l), seen = window > 0 ? std::min(window, context) : context;
    const std::int64_t attended = plan.compressed(l) ? std::min<std::int64_t>(plan.rules.budget, seen) : seen;
    bytes += real(attended) * token + (plan.compressed(l) ? real(seen) * index : 0);
  }
  return bytes;
}

// The largest context, in whole thousands of tokens, that so much memory holds for each sequence in 8 bits; 0: none.
std::int64_t context_that_fits(const BenchShape& shape, std::int64_t room, const Wanted& w) {
  std::int64_t low = 0, high = w.context >> 10;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (kv_bytes(shape, middle << 10, w.sequences, DType::kInt8) <= room)
      low = middle;
    else
      high = middle - 1;
  }
  return low << 10;
}

std::string smaller_context(const BenchShape& shape, std::int64_t room, const Wanted& w) {
  const std::int64_t context = context_that_fits(shape, room, w);
  return context == 0
             ? ""
             : fmt::format("-c {} --kv-cache-dtype int8 without a file: so many tokens fit the memory", context);
}

// Full attention where all keys and values fit the memory; or a method, where that alone is bearable.
Recommendation in_memory(const BenchShape& shape, const Wanted& w, double read_rate, DType dtype, std::int64_t most) {
  const std::string method(auto_method(true, true));
  const double n = real(w.sequences), weights = real(shape.step_weight_bytes);
  const double kv = real(kv_bytes(shape, w.context, w.sequences, dtype));
  const auto plan = method_plan(shape, dtype);
  const double full = n * read_rate / (weights + kv);
  const double part = plan ? n * read_rate / (weights + n * method_bytes(*plan, shape, w.context)) : 0;
  const bool reads_part = full < kSlow * n && part >= kGain * full;
  Recommendation r{
      .options = {"--device cpu", fmt::format("--kv {}", reads_part ? method : "full"),
                  fmt::format("--kv-cache-dtype {}", dtype_name(dtype)), fmt::format("--max-num-seqs {}", w.sequences),
                  fmt::format("-c {}", w.context)},
      .reason = fmt::format("the KV cache fits the memory{}, {}", is_eight_bit(dtype) ? " in 8 bits" : "",
                            reads_part ? fmt::format("and full attention would give {} tokens/s", rate_text(full))
                                       : "and every step reads all of it"),
      .most_sequences = most,
      .tokens_per_second = reads_part ? part : full};
  if (w.sequences > 1) r.options.push_back(fmt::format("--kv-offloading-size {:.0f}", std::ceil(kv / kGib)));
  if (!reads_part && part >= kGain * full)
    r.faster = fmt::format("--kv {}: reads a part of them, about {} tokens/s", method, rate_text(part));
  return r;
}

}  // namespace

Recommendation recommend_on_device(const DoctorDevice& device, const BenchShape& shape, const Wanted& wanted) {
  const bool eight = shape.config.head_dim == 64 || shape.config.head_dim == 128;
  const DType small = eight ? DType::kInt8 : DType::kBF16;
  std::vector<Form> forms = {{KvStore::kDevice, DType::kBF16, nullptr}};
  if (eight) forms.push_back({KvStore::kDevice, small, nullptr});
  if (const auto plan = method_plan(shape, small)) forms.push_back({KvStore::kHost, small, plan});

  const Card card = card_of(device);
  const Form* best = nullptr;
  std::int64_t most = 0;
  for (const Form& form : forms) {
    const std::int64_t n = most_sequences(setup_of(form, shape, wanted), card);
    if (n <= most) continue;
    best = &form, most = n;
    if (n >= wanted.sequences) break;
  }
  if (best == nullptr) {
    const DeviceOutlooks o = device_outlooks(device, shape, wanted.context, 1, wanted.host_bytes, small);
    if (!o.split.outlook.fits || forms.size() == 1)
      return {.reason = "not one sequence fits: weights of a smaller type (mneme convert), or a smaller -c"};
    Recommendation r{.options = options_of({forms.back()}, shape, {wanted.context, 1, wanted.host_bytes}),
                     .reason = "weights do not fit the device: every step reads layers over the link",
                     .most_sequences = 1,
                     .tokens_per_second = o.split.outlook.tokens_per_second};
    r.options.emplace_back("--gpu-layers auto");
    return r;
  }
  Wanted can = wanted;
  can.sequences = std::min(wanted.sequences, most);
  const double rate = throughput(setup_of(*best, shape, can), card).tokens_per_second;
  return {.options = options_of(*best, shape, can),
          .reason = reason_of(*best, wanted, can.sequences),
          .most_sequences = most,
          .tokens_per_second = rate,
          .faster = faster_of(*best, shape, can, card, rate)};
}

Recommendation recommend_on_cpu(const BenchShape& shape, const Wanted& wanted, double read_rate) {
  const std::int64_t fixed =
      shape.weight_bytes +
      activation_estimate(shape.config, std::max<std::int64_t>(kStepRows, wanted.sequences), wanted.sequences);
  const std::int64_t room = wanted.host_bytes - margin_of(wanted.host_bytes) - fixed;
  if (room <= 0) return {.reason = "the weights do not fit: a smaller type (mneme convert)"};
  for (const DType dtype : {DType::kBF16, DType::kInt8}) {
    const std::int64_t most = room / kv_bytes(shape, wanted.context, 1, dtype);
    if (most >= wanted.sequences) return in_memory(shape, wanted, read_rate, dtype, most);
  }
  const std::int64_t kv = kv_bytes(shape, wanted.context, wanted.sequences, DType::kInt8, true),
                     memory = room / (1 << 30), all = 1 + kv / (1 << 30);
  Recommendation r{
      .reason = "the KV cache does not fit the memory: its coldest pages are in a file, and a method reads few",
      .most_sequences = wanted.sequences,
      .faster = smaller_context(shape, room, wanted)};
  r.options = {"--device cpu",
               fmt::format("--kv {}", auto_method(true, true)),
               "--kv-cache-dtype int8",
               fmt::format("--max-num-seqs {}", wanted.sequences),
               fmt::format("-c {}", wanted.context),
               fmt::format("--kv-offloading-size {}", std::max<std::int64_t>(1, memory)),
               "--kv-spill FOLDER",
               fmt::format("--kv-spill-gib {}", std::max<std::int64_t>(1, all - memory))};
  return r;
}

std::string rate_text(double rate) {
  return rate >= 10 ? fmt::format("{:.0f}", rate) : fmt::format("{:.2g}", rate);
}

std::string prefill_text(double tokens_per_second, std::int64_t context) {
  std::string text = fmt::format("{} tokens/s over the whole context", rate_text(tokens_per_second));
  const double seconds = real(context) / tokens_per_second;
  if (seconds < kHour) return text;
  return text +
         fmt::format(
             ": {} hours for a prompt of {} tokens. A smaller -c or weights of a smaller type (mneme convert) take "
             "less; --save-session keeps what was read",
             rate_text(seconds / kHour), context);
}

std::string recommendation_text(const Recommendation& r) {
  std::string out;
  const auto line = [&out](std::string_view what, const std::string& value) {
    out += fmt::format("{:<22} {}\n", what, value);
  };
  line("recommended", r.options.empty() ? r.reason : fmt::format("{}", fmt::join(r.options, " ")));
  if (r.options.empty()) return out;
  line("  because", r.reason);
  if (r.tokens_per_second > 0)
    line("  gives", fmt::format("about {} tokens/s with the context full; room for {} such sequences",
                                rate_text(r.tokens_per_second), r.most_sequences));
  if (!r.faster.empty()) line("  or", r.faster);
  return out;
}

nlohmann::ordered_json recommendation_json(const Recommendation& r) {
  return {{"options", r.options},
          {"reason", r.reason},
          {"most_sequences", r.most_sequences},
          {"decode_tokens_per_second_when_full",
           r.tokens_per_second > 0 ? nlohmann::ordered_json(r.tokens_per_second) : nlohmann::ordered_json()},
          {"faster", r.faster}};
}

}  // namespace mneme::cli

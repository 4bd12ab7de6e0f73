// Names of the option types of mneme/options.h, in both directions.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "mneme/options.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/underlying.h"

namespace mneme {
namespace {

template <typename E, std::size_t N>
using Names = std::array<std::pair<std::string_view, E>, N>;

constexpr Names<Device, 2> kDevices = {{{"cpu", Device::kCpu}, {"cuda", Device::kCuda}}};
constexpr Names<KvResidency, 3> kResidencies = {
    {{"auto", KvResidency::kAuto}, {"device", KvResidency::kDevice}, {"host", KvResidency::kHost}}};
constexpr Names<KvDtype, 4> kDtypes = {
    {{"bf16", KvDtype::kBf16}, {"f16", KvDtype::kF16}, {"int8", KvDtype::kInt8}, {"fp8", KvDtype::kFp8}}};
constexpr Names<NumaPolicy, 3> kPolicies = {
    {{"none", NumaPolicy::kNone}, {"distribute", NumaPolicy::kDistribute}, {"isolate", NumaPolicy::kIsolate}}};

constexpr Names<KvAdmission, 2> kAdmissions = {
    {{"reserve", KvAdmission::kReserve}, {"forecast", KvAdmission::kForecast}}};

template <typename E, std::size_t N>
std::string_view name_in(const Names<E, N>& names, E value) {
  for (const auto& [name, v] : names)
    if (v == value) return name;
  MNEME_CHECK(false, "no name for value {}", underlying(value));
}

template <typename E, std::size_t N>
E value_in(const Names<E, N>& names, std::string_view option, std::string_view text) {
  std::array<std::string_view, N> known;
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i].first == text) return names[i].second;
    known[i] = names[i].first;
  }
  fail(ErrorKind::kOption, "{}: expected {}, found \"{}\"", option, fmt::join(known, " or "), text);
}

}  // namespace

std::string_view name_of(Device device) {
  return name_in(kDevices, device);
}
std::string_view name_of(KvResidency residency) {
  return name_in(kResidencies, residency);
}
std::string_view name_of(KvDtype dtype) {
  return name_in(kDtypes, dtype);
}
std::string_view name_of(NumaPolicy policy) {
  return name_in(kPolicies, policy);
}
std::string_view name_of(KvAdmission admission) {
  return name_in(kAdmissions, admission);
}

Device parse_device(std::string_view name) {
  return value_in(kDevices, "device", name);
}
KvResidency parse_kv_residency(std::string_view name) {
  return value_in(kResidencies, "kv_store", name);
}
KvDtype parse_kv_dtype(std::string_view name) {
  return value_in(kDtypes, "kv_cache_dtype", name);
}
NumaPolicy parse_numa_policy(std::string_view name) {
  return value_in(kPolicies, "numa", name);
}
KvAdmission parse_kv_admission(std::string_view name) {
  return value_in(kAdmissions, "kv_admission", name);
}

namespace {

// All of `text` as a number; nothing else in it.
std::optional<int> number_in(std::string_view text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(n) : std::nullopt;
}

constexpr std::string_view kNoDrafts = "off", kNgram = "ngram";

// A setting "name=number" of a drafter.
void read_speculation(std::string_view setting, std::string_view text, SpeculationOptions& options) {
  const std::size_t at = std::min(setting.find('='), setting.size());
  const std::string_view name = setting.substr(0, at), value = setting.substr(std::min(at + 1, setting.size()));
  const bool drafts = name == "k";
  if (!drafts && name != "min")
    fail(ErrorKind::kOption, "speculative: expected the settings k and min, found \"{}\" in \"{}\"", name, text);
  const std::optional<int> n = number_in(value);
  const int most = drafts ? 63 : 32;
  if (!n || *n < 1 || *n > most)
    fail(ErrorKind::kOption, "speculative: {}: expected a number from 1 to {}, found \"{}\"", name, most, value);
  (drafts ? options.drafts : options.min_match) = *n;
}

}  // namespace

SpeculationOptions parse_speculation(std::string_view text) {
  if (text == kNoDrafts) return {};
  const std::size_t at = std::min(text.find(':'), text.size());
  if (text.substr(0, at) != kNgram)
    fail(ErrorKind::kOption, "speculative: expected off, ngram, or ngram:k=7,min=4, found \"{}\"", text);
  SpeculationOptions options{.method = SpeculationOptions::Method::kNgram};
  if (at == text.size()) return options;
  for (std::string_view rest = text.substr(at + 1);;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    read_speculation(rest.substr(0, comma), text, options);
    if (comma == rest.size()) return options;
    rest.remove_prefix(comma + 1);
  }
}

std::string speculation_text(const SpeculationOptions& options) {
  if (!options.on()) return std::string(kNoDrafts);
  return fmt::format("{}:k={},min={}", kNgram, options.drafts, options.min_match);
}

std::optional<std::vector<std::int32_t>> parse_dense_layers(std::string_view text) {
  if (text.empty()) return std::nullopt;
  std::vector<std::int32_t> layers;
  if (text == "none") return layers;
  for (const char *at = text.data(), *const end = at + text.size();; ++at) {
    std::int32_t layer = -1;
    const auto result = std::from_chars(at, end, layer);
    at = result.ptr;
    if (result.ec != std::errc() || layer < 0 || (at != end && *at != ','))
      fail(ErrorKind::kOption, "--dense-layers: expected none, or layers as 0,1,31, found \"{}\"", text);
    layers.push_back(layer);
    if (at == end) return layers;
  }
}

std::string dense_layers_text(const std::optional<std::vector<std::int32_t>>& layers) {
  if (!layers) return "";
  return layers->empty() ? "none" : fmt::format("{}", fmt::join(*layers, ","));
}

int parse_gpu_layers(std::string_view text) {
  if (text == "auto") return kAutoGpuLayers;
  const std::optional<int> n = number_in(text);
  if (!n || *n < 0) fail(ErrorKind::kOption, "gpu_layers: expected auto or a number of layers, found \"{}\"", text);
  return *n;
}

}  // namespace mneme

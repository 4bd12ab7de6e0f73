#include "src/server/api/presets.h"

#include <algorithm>
#include <limits>

#include "mneme/recipe.h"
#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/recipes/override.h"
#include "src/server/api/request_fields.h"

namespace mneme::server {
namespace {

constexpr std::size_t kMaxPresetBytes = 64 << 10;

bool names_a_preset(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    const char low = to_lower(c);
    return (low >= 'a' && low <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
}

}  // namespace

KvMethodOptions parse_kv(const JsonRef& kv, const KvMethodOptions& defaults) {
  if (!kv.is_object()) kv.wrong("an object");
  for (const auto& [key, value] : kv.value().items()) {
    if (key != "method" && key != "budget" && key != "sink" && key != "recent" && key != "dense_layers" &&
        key != "overrides") {
      fail(ErrorKind::kRequest, "kv: expected method, budget, sink, recent, dense_layers and overrides, found \"{}\"",
           key.substr(0, 40));
    }
  }
  const std::string method = kv.string("method", defaults.method);
  if (method == "full" && !kv.find("method") && !kv.value().empty()) {
    fail(ErrorKind::kRequest,
         "kv.{}: without a method the answer attends everything; expected a method beside it, as in "
         "{{\"method\": \"freekv\", \"budget\": 2048}}",
         kv.value().begin().key());
  }
  KvMethodOptions o = method == defaults.method ? defaults : KvMethodOptions{.method = method};
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (const auto v = kv.find("budget")) o.budget = int_in(*v, 1, kMost);
  if (const auto v = kv.find("sink")) o.sink = int_in(*v, 0, kMost);
  if (const auto v = kv.find("recent")) o.recent = int_in(*v, 0, kMost);
  if (const auto v = kv.find("dense_layers")) o.dense_layers = parse_dense_layers(v->string());
  o.overrides = kv.string("overrides", o.overrides);
  return o;
}

Preset parse_preset(std::string_view text, const KvMethodOptions& defaults) {
  const std::size_t equals = text.find('=');
  const std::string name(text.substr(0, equals));
  if (equals == std::string_view::npos || !names_a_preset(name)) {
    fail(ErrorKind::kOption,
         "--preset: expected NAME=METHOD:KEY=VALUE,... or NAME=JSON, as in fast=freekv:budget=2048 or "
         "fast={{\"method\":\"freekv\",\"budget\":2048}}, found \"{}\"",
         text.substr(0, 80));
  }
  try {
    if (const std::string_view recipe = trimmed(text.substr(equals + 1)); !recipe.starts_with('{')) {
      parse_recipe(recipe);  // refuses what is none
      const std::size_t colon = recipe.find(':');
      return {.name = name,
              .kv = {.method = std::string(recipe.substr(0, colon)),
                     .overrides = std::string(colon == recipe.npos ? "" : recipe.substr(colon + 1))}};
    }
    const Json json = parse_json(text.substr(equals + 1), "JSON", kMaxPresetBytes);
    return {.name = name, .kv = parse_kv(JsonRef(json, "JSON"), defaults)};
  } catch (const Error& e) {
    fail(ErrorKind::kOption, "--preset {}: {}", name, e.what());
  }
}

const Preset* find_preset(std::span<const Preset> presets, std::string_view served_name, std::string_view model) {
  for (const Preset& preset : presets) {
    const std::size_t n = served_name.size();
    if (model.size() == n + 1 + preset.name.size() && model.starts_with(served_name) && model[n] == ':' &&
        model.ends_with(preset.name))
      return &preset;
  }
  return nullptr;
}

}  // namespace mneme::server

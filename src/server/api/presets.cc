#include "src/server/api/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "mneme/recipe.h"
#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/recipes/fields.h"
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

// A field's value in a request as the text of a recipe spells it. A text may be in the place of any value: "0.9", "yes".
//
// Errors  kRequest: another type than the field's, or a text with a comma.
std::string text_of(const JsonRef& v, const RecipeField& field) {
  const Json& json = v.value();
  if (json.is_string()) {
    if (v.string().find(',') != std::string::npos) v.wrong("one value, without a comma");
    return v.string();
  }
  switch (field.kind) {
    case FieldKind::kInteger:
      if (json.is_number_integer()) return json.dump();
      v.wrong(field.word.empty() ? "an integer" : fmt::format("an integer or \"{}\"", field.word));
    case FieldKind::kNumber:
      if (json.is_number()) return json.dump();
      v.wrong(field.word.empty() ? "a number" : fmt::format("a number or \"{}\"", field.word));
    case FieldKind::kFlag:
      if (json.is_boolean()) return json.get<bool>() ? "yes" : "no";
      v.wrong("true or false");
    case FieldKind::kLayers: {
      if (!json.is_array()) v.wrong("a list of layers");
      std::string layers;
      for (const Json& layer : json) {
        if (!layer.is_number_integer()) v.wrong("a list of layers");
        layers += (layers.empty() ? "" : "+") + layer.dump();
      }
      return layers.empty() ? "none" : layers;
    }
    case FieldKind::kName:
    case FieldKind::kText:
      break;
  }
  v.wrong(fmt::format("a text: {}", field.values));
}

// NAME or NAME:KEY=VALUE,...   Errors  kOption: no method has this text.
KvMethodOptions parse_method_text(std::string_view text) {
  parse_recipe(text);  // refuses what is none
  const std::size_t colon = text.find(':');
  return {.method = std::string(text.substr(0, colon)),
          .overrides = std::string(colon == text.npos ? "" : text.substr(colon + 1))};
}

}  // namespace

KvMethodOptions parse_kv(const JsonRef& kv, const KvMethodOptions& defaults) {
  if (kv.value().is_string()) return parse_method_text(kv.string());
  if (!kv.is_object()) kv.wrong("NAME:KEY=VALUE,... or an object");
  for (const auto& [key, value] : kv.value().items()) {
    if (key != "method" && key != "overrides" && find_field(key) == nullptr) {
      fail(ErrorKind::kRequest,
           "kv: expected method and fields of a recipe (mneme methods NAME lists them), found \"{}\"",
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
  if (const auto v = kv.find("budget"); v && v->value().is_number()) o.budget = int_in(*v, 1, kMost);
  if (const auto v = kv.find("sink")) o.sink = int_in(*v, 0, kMost);
  if (const auto v = kv.find("recent")) o.recent = int_in(*v, 0, kMost);
  if (const auto v = kv.find("dense_layers"); v && v->value().is_string())
    o.dense_layers = parse_dense_layers(v->string());
  o.overrides = kv.string("overrides", o.overrides);
  for (const RecipeField& field : recipe_fields()) {
    const bool set_above = field.name == "sink" || field.name == "recent";
    for (const std::string_view name : {std::string_view(field.name), field.also}) {
      const auto v = name.empty() || set_above ? std::nullopt : kv.find(name);
      if (!v || (name == "budget" && o.budget) || (name == "dense_layers" && v->value().is_string())) continue;
      o.overrides += fmt::format("{}{}={}", o.overrides.empty() ? "" : ",", field.name, text_of(*v, field));
    }
  }
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
      return {.name = name, .kv = parse_method_text(recipe)};
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

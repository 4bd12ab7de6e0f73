// Recipes that are served as models of their own: a request for "NAME:fast" attends as the preset "fast" says. Routers
// drop fields that they do not know, and pass the model's name on.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "mneme/options.h"
#include "src/formats/json.h"

namespace mneme::server {

struct Preset {
  std::string name;
  KvMethodOptions kv;
};

// "kv" of a request, or a preset's JSON: "NAME:KEY=VALUE,...", or {"method", the fields of a recipe, "overrides"}; what an
// object leaves out is `defaults`' where the method is. Fields count after "overrides", in the order of the table.
//
// Errors  kRequest, kFormat, kOption.
KvMethodOptions parse_kv(const JsonRef& kv, const KvMethodOptions& defaults);

// NAME=METHOD:KEY=VALUE,... as in fast=freekv:budget=2048, or NAME=JSON, as in fast={"method":"freekv","budget":2048}.
//
// Errors  kOption: a name of other characters than letters, digits, '.', '_' and '-'; a recipe or JSON that
//         parse_recipe() or parse_kv() refuses.
Preset parse_preset(std::string_view text, const KvMethodOptions& defaults);

// The preset of "SERVED:NAME"; null: `model` names none.
const Preset* find_preset(std::span<const Preset> presets, std::string_view served_name, std::string_view model);

}  // namespace mneme::server

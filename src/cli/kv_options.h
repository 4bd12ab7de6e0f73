// How answers attend, as options: shared by every subcommand that runs a model.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "mneme/options.h"
#include "src/recipes/recipe.h"

namespace mneme::cli {

using KvOptions = KvMethodOptions;

// --kv-method, --kv-budget, --kv-sink, --kv-recent, --dense-layers, --kv, in the group "Keys and values".
void add_kv_options(CLI::App& command, KvOptions& options);
// The same with several methods, one after the other: --kv-method full,quest,quest:unit=page:32. `options.method` is
// left alone.
void add_kv_options(CLI::App& command, KvOptions& options, std::vector<std::string>& methods);

// NAME or NAME:KEY=VALUE/KEY=VALUE as a recipe, with `options` for the rest.
Recipe recipe_named(const std::string& text, KvOptions options);

// All but the method: for commands that take methods in a form of their own.
void add_kv_block_options(CLI::App& command, KvOptions& options);

}  // namespace mneme::cli

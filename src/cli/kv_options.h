// How answers attend, as options: shared by every subcommand that runs a model.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/recipes/recipe.h"

namespace mneme::cli {

struct KvOptions {
  std::string method = "full";
  std::optional<std::int32_t> budget, sink, recent;
  std::string dense_layers;  // "0,1", "none"; empty: the method's own
  std::string overrides;     // "key=value,key=value"
};

// --kv-method, --kv-budget, --kv-sink, --kv-recent, --dense-layers, --kv, in the group "Keys and values".
void add_kv_options(CLI::App& command, KvOptions& options);
// The same with several methods, one after the other: --kv-method full,quest. `options.method` is left alone.
void add_kv_options(CLI::App& command, KvOptions& options, std::vector<std::string>& methods);

// All but the method: for commands that take methods in a form of their own.
void add_kv_block_options(CLI::App& command, KvOptions& options);

// Errors  kOption: no such method, layer list or override.
Recipe recipe_of(const KvOptions& options);

}  // namespace mneme::cli

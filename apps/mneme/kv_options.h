// Options of KV methods, shared by every subcommand that runs a model.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "mneme/options.h"
#include "src/recipes/recipe.h"

namespace mneme::cli {

using KvOptions = KvMethodOptions;

// --kv NAME[:KEY=VALUE,...], in the group "KV cache". Until 0.2 also its old spellings: --kv-method (or `names`),
// --kv-budget, --kv-sink, --kv-recent, --dense-layers, and --kv KEY=VALUE,... beside --kv-method, which counts last.
//
// Errors  kOption: a method is named by --kv and by --kv-method.
void add_kv_options(CLI::App& command, KvOptions& options, const char* names = "--kv-method");
// The same with a list of methods: --kv full,quest,quest:unit=page:32. `options.method` is not set.
void add_kv_options(CLI::App& command, KvOptions& options, std::vector<std::string>& methods);
// A list of methods alone, whose default is what `methods` has.
CLI::Option* add_method_list(CLI::App& command, const char* name, std::vector<std::string>& methods, const char* help);

// NAME or NAME:KEY=VALUE,... as name and settings. '/' before KEY= is a comma, which keeps settings apart from a list's.
struct MethodText {
  std::string name, settings;
};
MethodText parse_method(std::string_view text);
// The methods of a list that was split at its commas: a piece like "pool=maxS", with '=' before any ':', is a setting of
// the method before it.
//
// Errors  kOption: a setting without a method that has settings.
std::vector<std::string> join_settings(const std::vector<std::string>& pieces);

// Parses NAME or NAME:KEY=VALUE,... into a recipe; `options` has the rest.
//
//   note  null, or out: the note of recipe_of() about shrunk defaults
Recipe recipe_named(const std::string& text, KvOptions options, std::string* note = nullptr);
// Prints a note on standard error, each text once; "" prints nothing.
void say_note(const std::string& note);
// A hint for methods whose defaults are known to lose facts; else "".
std::string weak_default(const Recipe& recipe);
// Errors  kOption: a budget, sinks, a window or dense layers for full attention, which has none of them.
void expect_method(const KvOptions& options);

// --kv KEY=VALUE,... and the options of the region, for commands that name methods by options of their own.
void add_kv_block_options(CLI::App& command, KvOptions& options);

}  // namespace mneme::cli

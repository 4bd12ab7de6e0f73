// What the subcommands' options have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace mneme::cli {

// Accepts whole numbers from `low` to `high`, and says so when it meets something else.
CLI::Validator whole_number(std::int64_t low, std::int64_t high);
// Accepts finite numbers from `low` to `high`; either end may be infinite.
CLI::Validator number(double low, double high);
// Accepts one of these words.
CLI::Validator one_of(std::vector<std::string> words);
// Accepts any text but none.
CLI::Validator not_empty();

// Gives every option of `command` its environment variable: --kv-cache-dtype is MNEME_KV_CACHE_DTYPE, by the first of
// an option's long names. What stands on the command line wins.
void name_environment(CLI::App& command);

}  // namespace mneme::cli

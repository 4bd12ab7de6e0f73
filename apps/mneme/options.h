// Validators and helpers for options of subcommands.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mneme/options.h"

namespace mneme::cli {

// Accepts integers in [low, high]; the error names the range.
CLI::Validator whole_number(std::int64_t low, std::int64_t high);
// The parser of sizes, whatever the option. `text` is a number and a unit, in capitals or not; null: it is none.
//
//   kTokens   128K, 1M: by 1,024; a number alone is tokens; the result is whole
//   kBytes    GiB, Gi and G by 1,024, GB by 1,000, and so on for K, M and T; B, or a number alone, is bytes
//   kMemory   the same, in bytes too; a number alone is GiB
enum class SizeOf { kTokens, kBytes, kMemory };
std::optional<double> parse_size(std::string_view text, SizeOf of);

// For transform(): a number of tokens in [low, high], rewritten without its unit.
CLI::Validator tokens(std::int64_t low, std::int64_t high);
// The same of bytes.
CLI::Validator bytes(std::int64_t low, std::int64_t high);
// For transform(): memory of low to high GiB, rewritten as a number of GiB.
CLI::Validator gib(double low, double high);
// Accepts finite numbers in [low, high]; either bound may be infinite.
CLI::Validator number(double low, double high);
// Accepts one of these words.
CLI::Validator one_of(std::vector<std::string> words);
// Accepts any text that is not empty.
CLI::Validator not_empty();
// Accepts letters, digits and '_' that begin with a letter.
CLI::Validator identifier();

// An option of a named type: `parse` reads it, name_of() prints its default. Errors  what `parse` throws.
template <typename E>
CLI::Option* add_named(CLI::App& c, const std::string& name, E& value, E (*parse)(std::string_view),
                       const std::string& help) {
  return c
      .add_option_function<std::string>(
          name, [&value, parse](const std::string& text) { value = parse(text); }, help)
      ->default_str(std::string(name_of(value)));
}

// An option of a number of bytes, given as parse_size() reads memory.
CLI::Option* add_gib(CLI::App& c, const char* name, std::int64_t& bytes, const char* help);

// Gives every option of `command` its environment variable: --kv-cache-dtype is MNEME_KV_CACHE_DTYPE. Each of an
// option's long names has one, negations ("--no-...") apart; where several are set, that of the first name counts. What
// stands on the command line wins. MNEME_PORT as Kubernetes sets it ("tcp://10.0.0.1:8000") is ignored with a warning.
void name_environment(CLI::App& command);

}  // namespace mneme::cli

// Programs beside this one that have its larger subcommands: `mneme eval` runs mneme-eval, as git finds its commands.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::cli {

struct Companion {
  std::string_view command;  // its program is mneme-COMMAND
  std::string_view summary;
};
inline constexpr Companion kServeCompanion = {"serve", "Serve OpenAI's API over HTTP"};
inline constexpr Companion kEvalCompanion = {"eval", "Measure right answers, bytes and time of KV methods"};
inline constexpr Companion kBenchCompanion = {"bench", "Time steps, beside the machine's limits"};

// Where its program may be: the folder of `program`, then libexec/mneme of the installation whose bin/ that is.
std::vector<std::filesystem::path> companion_places(const Companion& companion, const std::filesystem::path& program);

// Adds a subcommand that --help lists.
void add_companion(CLI::App& app, const Companion& companion);

// Replaces this process with the companion's program, with the arguments after the subcommand's name. It returns where
// argv[1] is not the companion's command.
//
// Errors  kOption: the program is not built or not installed
void run_companion(const Companion& companion, int argc, char** argv);

// A warning where the program that started this one was built from another revision; empty otherwise.
std::string companion_warning();

}  // namespace mneme::cli

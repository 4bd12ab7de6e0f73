// Programs beside this one that have its larger subcommands: `mneme eval` runs mneme-eval, as git finds its commands.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::cli {

struct Companion {
  std::string_view command;
  std::string_view summary;
  std::string_view program;  // mneme-PROGRAM, for a command of another name with that as its first argument
};
inline constexpr Companion kServeCompanion = {"serve", "Serve OpenAI's API over HTTP", "serve"};
inline constexpr Companion kEvalCompanion = {"eval", "Measure right answers, bytes and time of KV methods", "eval"};
inline constexpr Companion kBenchCompanion = {"bench", "Time steps, beside the machine's limits", "bench"};
inline constexpr Companion kDoctorCompanion = {"doctor", "Show what this machine can do, and what a model needs",
                                               "doctor"};
inline constexpr Companion kPlanCompanion = {
    "plan", "Tell what fits on GPUs that are not here, and what a step costs there", "doctor"};

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

// Subcommands. Each function adds one to the program, with a callback that sets the exit code in `code`.
#pragma once

#include <CLI/CLI.hpp>

namespace mneme::cli {

void add_run(CLI::App& app, int& code);
void add_methods(CLI::App& app, int& code);
void add_inspect(CLI::App& app, int& code);
void add_tokenize(CLI::App& app, int& code);
void add_convert(CLI::App& app, int& code);

}  // namespace mneme::cli

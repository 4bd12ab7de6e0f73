// `mneme eval` and its subcommands.
#pragma once

#include <CLI/CLI.hpp>

namespace mneme::cli {

void add_eval(CLI::App& app, int& code);
void add_eval_ablate(CLI::App& eval, int& code);
void add_eval_calibrate(CLI::App& eval, int& code);
void add_eval_figure(CLI::App& eval, int& code);
void add_eval_hits(CLI::App& eval, int& code);
void add_eval_merge(CLI::App& eval, int& code);
void add_eval_similarity(CLI::App& eval, int& code);

}  // namespace mneme::cli

// Subcommands. Each function adds one to the program, with a callback that sets the exit code in `code`.
#pragma once

#include <CLI/CLI.hpp>

namespace mneme::cli {

void add_run(CLI::App& app, int& code);
void add_serve(CLI::App& app, int& code);
void add_eval(CLI::App& app, int& code);
void add_methods(CLI::App& app, int& code);
void add_inspect(CLI::App& app, int& code);
void add_tokenize(CLI::App& app, int& code);
void add_convert(CLI::App& app, int& code);
void add_bench(CLI::App& app, int& code);
// Subcommands of `bench`.
void add_bench_serve(CLI::App& bench, int& code);
void add_bench_allreduce(CLI::App& bench, int& code);
void add_bench_attention(CLI::App& bench, int& code);
void add_bench_ablate(CLI::App& bench, int& code);
void add_bench_select(CLI::App& bench, int& code);
void add_bench_gemm(CLI::App& bench, int& code);
void add_bench_gather(CLI::App& bench, int& code);
void add_plan(CLI::App& app, int& code);
void add_doctor(CLI::App& app, int& code);

}  // namespace mneme::cli

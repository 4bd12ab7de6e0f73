// `mneme bench` and its subcommands.
#pragma once

#include <CLI/CLI.hpp>

namespace mneme::cli {

void add_bench(CLI::App& app, int& code);
void add_bench_serve(CLI::App& bench, int& code);
void add_bench_allreduce(CLI::App& bench, int& code);
void add_bench_attention(CLI::App& bench, int& code);
void add_bench_ablate(CLI::App& bench, int& code);
void add_bench_select(CLI::App& bench, int& code);
void add_bench_gemm(CLI::App& bench, int& code);
void add_bench_gather(CLI::App& bench, int& code);

}  // namespace mneme::cli

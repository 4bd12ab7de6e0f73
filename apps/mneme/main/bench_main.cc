#include "apps/mneme/bench/bench_commands.h"
#include "apps/mneme/program.h"

int main(int argc, char** argv) {
  return mneme::cli::run_command("bench", argc, argv, {.bench = &mneme::cli::add_bench});
}

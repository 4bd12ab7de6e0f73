#include "apps/mneme/eval/eval_commands.h"
#include "apps/mneme/program.h"

int main(int argc, char** argv) {
  return mneme::cli::run_command("eval", argc, argv, {.eval = &mneme::cli::add_eval});
}

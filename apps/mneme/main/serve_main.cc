#include "apps/mneme/program.h"
#include "apps/mneme/serve/serve_command.h"

int main(int argc, char** argv) {
  return mneme::cli::run_command("serve", argc, argv, {.serve = &mneme::cli::add_serve});
}

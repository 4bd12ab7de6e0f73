// The `mneme` program: subcommands, and how it ends. main() calls it, and `python -m mneme`.
#pragma once

namespace mneme::cli {

// Exit codes  0 fine; 1 something unexpected; 2 bad input (options, files, requests); 130 interrupted.
int run_program(int argc, char** argv);

}  // namespace mneme::cli

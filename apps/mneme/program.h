// The `mneme` program: subcommands, and how it ends. its entries call it, and `python -m mneme`.
#pragma once

namespace CLI {
class App;
}

namespace mneme::cli {

// Subcommands that are linked into this program, where others run a program beside it (apps/mneme/companion).
struct LinkedCommands {
  void (*serve)(CLI::App& app, int& code) = nullptr;
  void (*eval)(CLI::App& app, int& code) = nullptr;
  void (*bench)(CLI::App& app, int& code) = nullptr;
  void (*doctor)(CLI::App& app, int& code) = nullptr;
  void (*plan)(CLI::App& app, int& code) = nullptr;
};

// Exit codes  0 fine; 1 something unexpected; 2 bad input (options, files, requests); 130 interrupted.
int run_program(int argc, char** argv, const LinkedCommands& linked = {});

// The program of one subcommand: `mneme-eval --tasks where` is `mneme eval --tasks where`.
int run_command(const char* command, int argc, char** argv, const LinkedCommands& linked);

}  // namespace mneme::cli

#include "apps/mneme/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "apps/mneme/commands.h"
#include "apps/mneme/companion/companion.h"
#include "apps/mneme/model_source.h"
#include "apps/mneme/options.h"
#include "mneme/mneme.h"
#include "src/parallel/collective.h"

namespace {

constexpr int kUnexpected = 1;
constexpr int kBadInput = 2;

int complain(int code, const std::string& message) {
  fmt::print(stderr, "mneme: error: {}\n", message);
  return code;
}

// Help and version go to standard output and are no error.
int end_of_parsing(const CLI::App& app, const CLI::ParseError& e) {
  if (e.get_exit_code() == 0) {
    const int code = app.exit(e);
    if (!std::cout.flush()) return complain(kBadInput, "standard output: cannot be written");
    return code;
  }
  std::string message = e.what();
  const auto stray = app.remaining();
  if (app.get_subcommands().empty() && !stray.empty() && !stray.front().starts_with("-")) {
    message = fmt::format("there is no subcommand \"{}\"", stray.front());
  }
  if (!message.empty() && message.back() == '.') message.pop_back();
  complain(kBadInput, message);
  const auto commands = app.get_subcommands();
  fmt::print(stderr, "mneme{} --help lists the options\n", commands.empty() ? "" : " " + commands.front()->get_name());
  return kBadInput;
}

// A subcommand that is linked in, or a program beside this one.
void add_either(CLI::App& app, int& code, void (*linked)(CLI::App&, int&), const mneme::cli::Companion& companion) {
  if (linked != nullptr) return linked(app, code);
  mneme::cli::add_companion(app, companion);
}

void run_companions(int argc, char** argv, const mneme::cli::LinkedCommands& linked) {
  if (linked.eval == nullptr) mneme::cli::run_companion(mneme::cli::kEvalCompanion, argc, argv);
  if (linked.bench == nullptr) mneme::cli::run_companion(mneme::cli::kBenchCompanion, argc, argv);
}

}  // namespace

int mneme::cli::run_program(int argc, char** argv, const LinkedCommands& linked) {
  int code = 0;
  CLI::App app("Mneme runs language models over long documents.", "mneme");
  app.set_version_flag("--version", "mneme " + std::string(mneme::version()));
  app.require_subcommand(1);
  app.get_formatter()->column_width(46);
  app.footer("Every option can be set as an environment variable too: --kv-cache-dtype is MNEME_KV_CACHE_DTYPE.");
  mneme::cli::add_run(app, code);
  mneme::cli::add_serve(app, code);
  add_either(app, code, linked.eval, kEvalCompanion);
  mneme::cli::add_methods(app, code);
  mneme::cli::add_inspect(app, code);
  mneme::cli::add_tokenize(app, code);
  mneme::cli::add_convert(app, code);
  add_either(app, code, linked.bench, kBenchCompanion);
  mneme::cli::add_plan(app, code);
  mneme::cli::add_doctor(app, code);
  mneme::cli::name_environment(app);
  try {
    run_companions(argc, argv, linked);
    app.parse(argc, mneme::cli::with_long_hf(app, argc, argv).data());
  } catch (const CLI::ParseError& e) {
    return end_of_parsing(app, e);
  } catch (const mneme::RanksStopped& e) {
    return complain(kUnexpected, e.what());
  } catch (const mneme::Error& e) {
    return complain(kBadInput, e.what());
  } catch (const std::bad_alloc&) {
    return complain(kBadInput, "out of memory");
  } catch (const std::exception& e) {
    return complain(kUnexpected, e.what());
  }
  if (std::fflush(stdout) != 0 && code == 0) return complain(kBadInput, "standard output: cannot be written");
  return code;
}

int mneme::cli::run_command(const char* command, int argc, char** argv, const LinkedCommands& linked) {
  if (const std::string warning = companion_warning(); !warning.empty())
    fmt::print(stderr, "mneme: warning: {}\n", warning);
  std::string name = command;
  std::vector<char*> arguments = {argv[0], name.data()};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  arguments.push_back(nullptr);
  return run_program(argc + 1, arguments.data(), linked);
}

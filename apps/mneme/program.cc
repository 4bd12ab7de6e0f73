#include "apps/mneme/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "apps/mneme/commands.h"
#include "apps/mneme/companion/companion.h"
#include "apps/mneme/model_source.h"
#include "apps/mneme/options.h"
#include "mneme/mneme.h"
#include "src/base/most_like.h"
#include "src/parallel/collective.h"

namespace {

constexpr int kUnexpected = 1;
constexpr int kBadInput = 2;

int complain(int code, const std::string& message) {
  fmt::print(stderr, "mneme: error: {}\n", message);
  return code;
}

// The deepest subcommand that was named, and its name: "mneme bench decode".
const CLI::App& command_of(const CLI::App& app, std::string& name) {
  const CLI::App* command = &app;
  name = app.get_name();
  for (auto below = command->get_subcommands(); !below.empty(); below = command->get_subcommands()) {
    command = below.front();
    name += " " + command->get_name();
  }
  return *command;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  if (command.get_option_no_throw("--hf-repo") != nullptr) names.emplace_back("-hf");
  return names;
}

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands({})) names.push_back(sub->get_name());
  return names;
}

std::string most_like(std::string_view name, const std::vector<std::string>& names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  return std::string(mneme::most_like(name, views));
}

// What other programs call a subcommand, and what to run here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kElsewhere = {{
    {"chat", "mneme run -m MODEL starts a chat"},
    {"help", "mneme --help lists the subcommands"},
    {"version", "mneme --version tells it"},
    {"pull", "mneme run -hf OWNER/NAME fetches a model and runs it"},
    {"download", "mneme run -hf OWNER/NAME fetches a model and runs it"},
    {"list", "mneme methods lists KV methods, mneme inspect shows a model"},
    {"generate", "mneme run -m MODEL -p PROMPT answers a prompt"},
    {"complete", "mneme run -m MODEL -p PROMPT answers a prompt"},
    {"benchmark", "mneme bench decode times steps"},
    {"quantize", "mneme convert IN OUT --type TYPE writes another type"},
}};

std::string unknown_command(const CLI::App& command, const std::string& name) {
  const std::string message = fmt::format("there is no subcommand \"{}\"", name);
  for (const auto& [word, advice] : kElsewhere)
    if (name == word) return fmt::format("{}: {}", message, advice);
  const std::vector<std::string> names = command_names(command);
  if (const std::string like = most_like(name, names); !like.empty())
    return fmt::format("{}: did you mean \"{}\"?", message, like);
  return fmt::format("{}: expected one of {}", message, fmt::join(names, ", "));
}

// What the command does not take, in the order it was given.
std::string unexpected(const CLI::App& command, const std::vector<std::string>& stray) {
  if (command.get_subcommands().empty() && !command.get_subcommands({}).empty() && !stray.front().starts_with("-"))
    return unknown_command(command, stray.front());
  std::string message = fmt::format("unexpected argument{}: {}", stray.size() > 1 ? "s" : "", fmt::join(stray, " "));
  const std::vector<std::string> names = option_names(command);
  for (const std::string& argument : stray) {
    if (!argument.starts_with("-")) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (const std::string like = most_like(name, names); !like.empty())
      message += fmt::format("; {}: did you mean {}?", name, like);
  }
  return message;
}

// Help and version go to standard output and are no error.
int end_of_parsing(const CLI::App& app, const CLI::ParseError& e) {
  if (e.get_exit_code() == 0) {
    const int code = app.exit(e);
    if (!std::cout.flush()) return complain(kBadInput, "standard output: cannot be written");
    return code;
  }
  std::string name;
  const CLI::App& command = command_of(app, name);
  std::string message = e.what();
  const bool strays = e.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) ||
                      e.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
  for (const CLI::App* at : {&app, &command})
    if (const auto stray = at->remaining(); strays && !stray.empty()) message = unexpected(*at, stray);
  if (!message.empty() && message.back() == '.') message.pop_back();
  complain(kBadInput, message);
  fmt::print(stderr, "{} --help lists the options\n", name);
  return kBadInput;
}

// A subcommand that is linked in, or a program beside this one.
void add_either(CLI::App& app, int& code, void (*linked)(CLI::App&, int&), const mneme::cli::Companion& companion) {
  if (linked != nullptr) return linked(app, code);
  mneme::cli::add_companion(app, companion);
}

void run_companions(int argc, char** argv, const mneme::cli::LinkedCommands& linked) {
  if (linked.serve == nullptr) mneme::cli::run_companion(mneme::cli::kServeCompanion, argc, argv);
  if (linked.eval == nullptr) mneme::cli::run_companion(mneme::cli::kEvalCompanion, argc, argv);
  if (linked.bench == nullptr) mneme::cli::run_companion(mneme::cli::kBenchCompanion, argc, argv);
  if (linked.plan == nullptr) mneme::cli::run_companion(mneme::cli::kPlanCompanion, argc, argv);
  if (linked.doctor == nullptr) mneme::cli::run_companion(mneme::cli::kDoctorCompanion, argc, argv);
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
  add_either(app, code, linked.serve, kServeCompanion);
  add_either(app, code, linked.eval, kEvalCompanion);
  mneme::cli::add_methods(app, code);
  mneme::cli::add_inspect(app, code);
  mneme::cli::add_tokenize(app, code);
  mneme::cli::add_convert(app, code);
  add_either(app, code, linked.bench, kBenchCompanion);
  add_either(app, code, linked.plan, kPlanCompanion);
  add_either(app, code, linked.doctor, kDoctorCompanion);
  mneme::cli::name_environment(app);
  try {
    if (argc == 1) throw CLI::CallForHelp();
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

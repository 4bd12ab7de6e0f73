#include "apps/mneme/run/chat_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "src/base/ascii.h"

namespace mneme::cli {
namespace {

using Kind = ChatLine::Kind;

struct Command {
  std::string_view name, argument, help;  // argument: "FILE", or empty
  Kind kind;
};

constexpr std::array kCommands = {
    Command{"/load", "FILE", "read a document, in a new session", Kind::kLoad},
    Command{"/stats", "", "tokens, seconds and memory so far", Kind::kStats},
    Command{"/reset", "", "forget questions and answers, keep the document", Kind::kReset},
    Command{"/save", "FILE", "write the session to a file", Kind::kSave},
    Command{"/restore", "FILE", "go on with a session from a file", Kind::kRestore},
    Command{"/help", "", "this list", Kind::kHelp},
    Command{"/quit", "", "end the program; so does Ctrl-D", Kind::kQuit},
};

std::string file_name(std::string_view given) {
  const char* home = std::getenv("HOME");
  if (home != nullptr && given.starts_with("~/")) return std::string(home) + std::string(given.substr(1));
  return std::string(given);
}

}  // namespace

ChatLine parse_chat_line(std::string_view line) {
  const std::string_view text = trimmed(line);
  if (text.empty()) return {};
  if (!line.starts_with('/') || text.find('\n') != text.npos) return {Kind::kQuestion, std::string(text)};
  const std::size_t end = std::min(text.find_first_of(" \t"), text.size());
  const std::string_view name = text.substr(0, end), argument = trimmed(text.substr(end));
  const auto command =
      std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& c) { return c.name == name; });
  if (command == kCommands.end()) {
    return {Kind::kWrong,
            fmt::format("there is no command \"{}\": /help lists them (a question that begins with / takes a "
                        "space before it)",
                        name)};
  }
  if (command->argument.empty() != argument.empty()) {
    return {Kind::kWrong, argument.empty()
                              ? fmt::format("{} {}: expected the name of a file", name, command->argument)
                              : fmt::format("{}: expected nothing after it, found \"{}\"", name, argument)};
  }
  return {command->kind, file_name(argument)};
}

std::string chat_help() {
  std::string text;
  for (const Command& c : kCommands)
    text += fmt::format("{:<15} {}\n", fmt::format("{} {}", c.name, c.argument), c.help);
  return text +
         "A line that ends with \\ goes on in the next one; \"\"\" begins a question of several lines and ends it; a "
         "paste is one question.\nCtrl-C ends an answer; at an empty prompt, twice, the program.\n";
}

}  // namespace mneme::cli

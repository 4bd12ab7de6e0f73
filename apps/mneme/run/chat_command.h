// What a line of a chat means.
#pragma once

#include <string>
#include <string_view>

namespace mneme::cli {

struct ChatLine {
  enum class Kind { kNothing, kQuestion, kLoad, kSave, kRestore, kStats, kReset, kHelp, kQuit, kWrong };
  Kind kind = Kind::kNothing;
  std::string text;  // the question, the file's name, or what is wrong with the line
};

// A line that begins with / is a command, any other one a question; spaces at its ends are left out. "~/" at the
// beginning of a file's name is the home folder.
ChatLine parse_chat_line(std::string_view line);

// The commands, one a line.
std::string chat_help();

}  // namespace mneme::cli

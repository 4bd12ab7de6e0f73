// Parses a line of a chat.
#pragma once

#include <string>
#include <string_view>

namespace mneme::cli {

struct ChatLine {
  enum class Kind { kNothing, kQuestion, kLoad, kSave, kRestore, kStats, kReset, kHelp, kQuit, kWrong };
  Kind kind = Kind::kNothing;
  std::string text;  // the question, the file's name, or what is wrong with the line
};

// A single line that begins with / is a command, anything else a question. Trims spaces; expands "~/" in file names.
ChatLine parse_chat_line(std::string_view line);

// The commands, one per line.
std::string chat_help();

}  // namespace mneme::cli

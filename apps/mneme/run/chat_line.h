// Reads lines of a chat from a terminal, with editing and history, or from a pipe.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace mneme::cli {

class LineReader {
 public:
  enum class End { kLine, kInterrupt, kEnd };

  virtual ~LineReader() = default;
  // The next line, without its end. kInterrupt: Ctrl-C; the typed text is discarded. kEnd: Ctrl-D, or no more input.
  //
  // Errors  kFile: standard input cannot be read.
  virtual End next(const char* prompt, std::string& line) = 0;
  virtual bool interactive() const = 0;
};

// With editing if standard input and standard error (the prompt) are a terminal with cursor movement. Reads `history`
// now and writes it in the destructor; empty: no file.
std::unique_ptr<LineReader> make_line_reader(const std::filesystem::path& history);

// Lines are joined where one ends with a backslash, and on a terminal from one that begins with """ to one that ends with
// it. On a terminal a line may hold line ends: a paste is one.
LineReader::End next_entry(LineReader& reader, std::string& entry);

// $XDG_STATE_HOME/mneme/history, or ~/.local/state/mneme/history; empty where neither is known.
std::filesystem::path history_path();

}  // namespace mneme::cli

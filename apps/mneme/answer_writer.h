// Writes answers to standard output piece by piece, and texts to files.
#pragma once

#include <string>
#include <string_view>

namespace mneme::cli {

class AnswerWriter {
 public:
  // Unbuffered. Errors  kFile: standard output cannot be written (the disk is full, ...).
  void write(std::string_view text);
  // Ends the line, unless it has ended.
  void end_line();

 private:
  bool at_line_start_ = false;
};

// Writes a whole file. Errors  kFile: it cannot be written; the message names `option`.
void write_text(std::string_view option, const std::string& file, const std::string& text);

}  // namespace mneme::cli

// Writes an answer to standard output piece by piece.
#pragma once

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

}  // namespace mneme::cli

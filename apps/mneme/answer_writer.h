// Standard output, as the place where an answer goes piece by piece.
#pragma once

#include <string_view>

namespace mneme::cli {

class AnswerWriter {
 public:
  // At once, not when a buffer is full. Errors  kFile: standard output cannot be written (the disk is full, ...).
  void write(std::string_view text);
  // A line end, unless the last thing written was one.
  void end_line();

 private:
  bool at_line_start_ = false;
};

}  // namespace mneme::cli

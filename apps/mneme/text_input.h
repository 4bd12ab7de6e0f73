// Text that users bring: from a file or from standard input.
#pragma once

#include <string>

namespace mneme::cli {

// The content of a file, "-" for standard input. A byte order mark is left out.
//
// Errors  kFile: missing, a folder, unreadable. kRequest: not text (a zero byte, or no UTF-8; where is said).
std::string read_text(const std::string& path);

// A chat template: its text stands for itself, anything else is a file's name. Errors  as read_text.
std::string read_template(const std::string& text_or_path);

// Errors  kRequest: `text` has a zero byte or is not UTF-8. `what` names it.
void expect_text(const std::string& what, const std::string& text);

// Line ends at the end of a document say nothing, and would stand between it and the question.
std::string without_last_line_ends(std::string text);

bool stdin_is_terminal();
bool stdout_is_terminal();

}  // namespace mneme::cli

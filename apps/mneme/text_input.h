// Text from the user: a file or standard input.
#pragma once

#include <string>

namespace mneme::cli {

// Standard input, bytes as they come.
//
// Errors  kFile: it cannot be read.
std::string read_stdin();

// Reads a file, or standard input for "-". Skips a byte order mark.
//
// Errors  kFile: missing, a folder, unreadable. kRequest: not text (a zero byte, or invalid UTF-8; the message has the
// offset).
std::string read_text(const std::string& path);

// A chat template: template text is returned as it is, and so is a word that names no file: it names one of the model's
// templates. Anything else names a file. Errors  as read_text.
std::string read_template(const std::string& text_or_path);

// Errors  kRequest: `text` has a zero byte or is not UTF-8. `what` names it.
void expect_text(const std::string& what, const std::string& text);

// Removes line ends at the end of a document, which would separate it from the question.
std::string without_last_line_ends(std::string text);

// Whether standard input is a pipe: `echo QUESTION | mneme run ...`. Files, devices and sockets do not count: a shell
// loop or a service may have opened them for other programs.
bool stdin_is_pipe();
bool stdin_is_terminal();
bool stdout_is_terminal();

}  // namespace mneme::cli

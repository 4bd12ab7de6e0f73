#include "apps/mneme/text_input.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/text/unicode/utf8.h"

namespace mneme::cli {
namespace {

std::string read_file(const std::string& path) {
  // A pipe or a terminal (/dev/stdin, <(command)) cannot be mapped, but read.
  std::error_code ignored;
  const std::filesystem::file_type type = std::filesystem::status(path, ignored).type();
  if (type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::character) {
    std::FILE* f = std::fopen(path.c_str(), "rb");
    if (f == nullptr) fail(ErrorKind::kFile, "{}: cannot be opened: {}", path, std::strerror(errno));
    std::string text;
    char buffer[1 << 16];
    for (std::size_t n; (n = std::fread(buffer, 1, sizeof(buffer), f)) > 0;) text.append(buffer, n);
    std::fclose(f);
    return text;
  }
  const MappedFile file{std::filesystem::path(path)};
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

std::string read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n == 0) return text;
    if (n > 0) {
      text.append(buffer, n);
    } else if (errno != EINTR) {
      fail(ErrorKind::kFile, "standard input: cannot be read: {}", std::strerror(errno));
    }
  }
}

void expect_text(const std::string& what, const std::string& text) {
  const std::size_t invalid = find_invalid_utf8(text);
  const std::size_t zero = text.find('\0');
  if (zero < invalid) {
    fail(ErrorKind::kRequest, "{}: expected text, found a zero byte at offset {}: this looks like a binary file", what,
         zero);
  }
  if (invalid != kValidUtf8) {
    fail(ErrorKind::kRequest, "{}: expected UTF-8 text, found byte 0x{:02x} at offset {}, which is none", what,
         byte_of(text[invalid]), invalid);
  }
}

std::string read_text(const std::string& path) {
  const bool standard = path == "-";
  std::string text = standard ? read_stdin() : read_file(path);
  expect_text(standard ? "standard input" : path, text);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

std::string read_template(const std::string& t) {
  const bool text = t.find("{{") != std::string::npos || t.find("{%") != std::string::npos;
  // A word that names no file may name one of the model's templates.
  std::error_code absent;
  const bool word = std::all_of(t.begin(), t.end(), [](char c) { return is_letter_or_digit(c) || c == '_'; });
  return text || (word && !std::filesystem::exists(t, absent)) ? t : read_text(t);
}

std::string without_last_line_ends(std::string text) {
  text.erase(text.find_last_not_of("\r\n") + 1);
  return text;
}

bool stdout_is_terminal() {
  return ::isatty(STDOUT_FILENO) == 1;
}

bool stdin_is_pipe() {
  struct stat there {};
  return ::fstat(STDIN_FILENO, &there) == 0 && S_ISFIFO(there.st_mode);
}

bool stdin_is_terminal() {
  return ::isatty(STDIN_FILENO) == 1;
}

}  // namespace mneme::cli

#include "apps/mneme/answer_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "src/base/error.h"

namespace mneme::cli {

void AnswerWriter::write(std::string_view text) {
  if (text.empty()) return;
  at_line_start_ = text.back() == '\n';
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(ErrorKind::kFile, "standard output: cannot be written: {}", std::strerror(errno));
    text.remove_prefix(n);
  }
}

void AnswerWriter::end_line() {
  if (!at_line_start_) write("\n");
}

void write_text(std::string_view option, const std::string& file, const std::string& text) {
  std::ofstream out(file, std::ios::trunc);
  out << text;
  if (!out.flush()) fail(ErrorKind::kFile, "{} {}: cannot be written", option, file);
}

}  // namespace mneme::cli

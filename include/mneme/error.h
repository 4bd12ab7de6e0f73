// What the world got wrong: a file, an option, a request, a machine too small. Thrown where it is found, with a message
// that says what, what was expected, what was found and where to look. Our own bugs abort instead (src/base/check.h).
#pragma once

#include <stdexcept>
#include <string>

namespace mneme {

enum class ErrorKind {
  kFile,         // cannot be opened, read or written
  kFormat,       // a file's content is damaged or contradicts itself
  kUnsupported,  // well-formed, but not something this build can do
  kOption,       // a command-line or API option
  kRequest,      // a prompt or a generation request
  kResource,     // not enough memory, threads, file handles
  kDevice,       // the GPU or its driver
};

// Short name of a kind, as it stands in messages and JSON: "file", "format", ...
const char* error_kind_name(ErrorKind kind);

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace mneme

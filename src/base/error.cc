#include "mneme/error.h"

namespace mneme {

const char* error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kFile:
      return "file";
    case ErrorKind::kFormat:
      return "format";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kOption:
      return "option";
    case ErrorKind::kRequest:
      return "request";
    case ErrorKind::kResource:
      return "resource";
    case ErrorKind::kDevice:
      return "device";
  }
  return "unknown";
}

}  // namespace mneme

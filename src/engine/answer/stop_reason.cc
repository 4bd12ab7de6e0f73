#include "mneme/stats.h"
#include "src/base/check.h"
#include "src/base/underlying.h"

namespace mneme {

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kEnd:
      return "end";
    case StopReason::kLength:
      return "length";
    case StopReason::kStopString:
      return "stop";
    case StopReason::kCancelled:
      return "cancelled";
  }
  MNEME_CHECK(false, "stop reason {}", underlying(reason));
}

std::string_view finish_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kEnd:
    case StopReason::kStopString:
      return "stop";
    case StopReason::kLength:
      return "length";
    case StopReason::kCancelled:
      return "abort";
  }
  MNEME_CHECK(false, "stop reason {}", underlying(reason));
}

}  // namespace mneme

#include "src/engine/loop/generation.h"

#include "src/base/check.h"
#include "src/base/underlying.h"

namespace mneme {

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
  }
  MNEME_CHECK(false, "finish reason {}", underlying(reason));
}

}  // namespace mneme

#include "src/engine/session/session_ranks.h"

namespace mneme {

void follow(const RunningModel& model) {
  while (model.engine->follow([](std::uint8_t, std::span<const std::byte>) {})) {
  }
}

}  // namespace mneme

// Answers in flight of one API key.
//
// Threads  the I/O thread; policy and group: any.
#pragma once

#include <cstdint>

#include "src/server/api/key_policies.h"

namespace mneme::server {

struct KeyUse {
  KeyPolicy policy;
  std::int32_t group = 0;  // of its requests in the engine: a number of its own, from 1
  std::int64_t in_flight = 0;

  bool has_room_for(std::int64_t n) const { return policy.max_in_flight == 0 || in_flight + n <= policy.max_in_flight; }
};

}  // namespace mneme::server

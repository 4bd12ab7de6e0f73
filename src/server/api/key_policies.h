// What each API key may do: how urgent its requests are, and how many of them run and wait at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::server {

struct KeyPolicy {
  std::string key, name;           // messages and logs show the name, never the key
  std::int32_t priority = 0;       // of its requests at the most, as the API has it: smaller first
  std::int32_t max_running = 0;    // answers that are computed at once; 0: any number
  std::int32_t max_in_flight = 0;  // answers that run and wait; more are refused with 429; 0: any number
};

// The file of --api-keys: {"keys": [{"key": "...", "name": "...", "priority": 0, "max_running": 0,
// "max_in_flight": 0}]}. `file` is named in errors.
//
// Errors  kFormat: not that, an unknown field, two equal keys or names, a number out of range.
std::vector<KeyPolicy> parse_key_policies(std::string_view text, std::string_view file);

}  // namespace mneme::server

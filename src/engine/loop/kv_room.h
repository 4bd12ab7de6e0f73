// The memory that keys and values of many callers get by default.
#pragma once

#include <cstdint>

#include "mneme/options.h"
#include "src/formats/checkpoint.h"

namespace mneme {

// Bytes for as many sequences of the whole context as may run together, but not more than half of the memory that is
// left beside the weights: pages are touched when they are used, and others compute here too. 0: not even one sequence
// fits so; the engine says what is missing.
std::int64_t default_kv_bytes(const Checkpoint& checkpoint, const EngineOptions& options);

}  // namespace mneme

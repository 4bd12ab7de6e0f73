// What keys and values would take of a device, by which --kv-store auto decides where they lie.
#pragma once

#include <cstdint>

#include "mneme/options.h"
#include "src/kv/page_pool.h"
#include "src/recipes/compile.h"

namespace mneme {

// Keys and values of `options`: kv_memory_bytes, or one sequence of `context` tokens, of which layers with a window keep
// the window.
std::int64_t wanted_kv_bytes(const KvShape& shape, const EngineOptions& options, std::int64_t context,
                             KvWindows windows = {});

// The index of a method that selects, for `sequences` of `context` tokens, which is allocated whole with the method's
// first sequence; a quarter more for scores, lists and tables. 0 where nothing is selected.
std::int64_t wanted_index_bytes(const Plan& plan, std::int64_t context, int sequences);

}  // namespace mneme

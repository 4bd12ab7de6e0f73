// Builds clusters and segments of one (layer, KV head), as its partition defines.
#pragma once

#include <span>

#include "src/recipes/compile.h"
#include "src/selection/cluster/partition.h"
#include "src/selection/index/unit_table.h"

namespace mneme {

// Appends the units of `ranges`, whose tokens follow those of the table, and their index entries.
void append_list_units(std::span<const UnitRange> ranges, const Plan& plan, const SequenceCache& cache,
                       std::int32_t layer, std::int32_t kv_head, UnitTable& table, EntryStore& entries);

}  // namespace mneme

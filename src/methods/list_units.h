// Clusters and segments of one (layer, KV head), as its partition says.
#pragma once

#include <span>

#include "src/blocks/partition.h"
#include "src/blocks/unit_table.h"
#include "src/recipes/compile.h"

namespace mneme {

// Appends the units of `ranges`, whose tokens follow those of the table, and their entries.
void append_list_units(std::span<const UnitRange> ranges, const Plan& plan, const SequenceCache& cache,
                       std::int32_t layer, std::int32_t kv_head, UnitTable& table, EntryStore& entries);

}  // namespace mneme

// From the public options of a KV method to a recipe, and from its counts to public statistics.
#pragma once

#include "mneme/mneme.h"
#include "mneme/options.h"
#include "src/attention/method_stats.h"
#include "src/cache/page_pool.h"
#include "src/recipes/compile.h"

namespace mneme {

// Errors  kOption: no such method, layer list or override.
Recipe recipe_of(const KvMethodOptions& options);

// index_bytes: what the method holds.
KvMethodStats kv_method_stats(const MethodStats& stats, const Plan& plan, std::size_t index_bytes,
                              const PagePool& pool);

}  // namespace mneme

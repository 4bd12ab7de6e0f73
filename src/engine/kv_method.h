// From the public options of a KV method to a recipe, and from its counts to public statistics.
#pragma once

#include <string>
#include <string_view>

#include "mneme/mneme.h"
#include "mneme/options.h"
#include "src/kv/page_pool.h"
#include "src/methods/stats/method_stats.h"
#include "src/recipes/compile.h"

namespace mneme {

// What the method "auto" stands for: full attention where the computing device holds the cache, "mneme" where the cache
// lies in the host's memory beside it.
inline constexpr std::string_view kAutoMethod = "auto";
std::string_view auto_method(bool on_device, bool in_host_memory);

// Default sinks and window shrink with a small budget (fit_defaults()).
//
//   note  null, or out: one sentence that says what shrank, or ""
// Errors  kOption: no such method, layer list or override.
//
// The method "auto" is full attention here.
Recipe recipe_of(const KvMethodOptions& options, std::string* note = nullptr);

// index_bytes: what the method holds.
KvMethodStats kv_method_stats(const MethodStats& stats, const Plan& plan, std::size_t index_bytes,
                              const PagePool& pool);

// What full attention reads in `steps` decode steps: step i attends n_tokens + i + 1 tokens in every layer, or those of
// the model's own window where a layer has one.
KvMethodStats full_attention_stats(const MethodShape& shape, std::int64_t n_tokens, std::int64_t steps);

}  // namespace mneme

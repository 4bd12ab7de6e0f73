// Arithmetic of sinks, window, candidates and budget: which tokens a step attends and may select from, and how many.
//
// With N tokens stored (the current one included), S sinks and a recent window of W tokens, the attended set is
//
//     [0, sink)  +  selected units from [first_unit, last_unit)  +  [recent_from, N)
//
// * Units of p tokens are aligned at position 0. A unit is a candidate when it is complete, has its index entry, and is
//   wholly between sinks and window. The window is aligned to units from below: it holds at most W tokens, and more
//   than W - p.
// * The current token is always in the window, and so is every token whose index entry is not complete yet, even if
//   W = 0.
// * Where sinks and window overlap, sinks win. No token is counted twice.
// * Up to N = budget everything is attended and nothing is selected.
#pragma once

#include <cstdint>

namespace mneme {

struct RegionRules {
  std::int32_t budget = 2048;     // B: tokens that one KV head reads in one layer in one step, all included
  std::int32_t sink = 0;          // S
  std::int32_t recent = 0;        // W
  std::int32_t unit_tokens = 1;   // p: 1 for units of tokens
  std::int32_t entry_tokens = 1;  // tokens per index entry (a page's box: p; 1-bit keys: their group)
};

struct Region {
  bool everything = true;                      // attend [0, N): the fields below are then 0
  std::int32_t sink = 0;                       // tokens [0, sink)
  std::int32_t first_unit = 0, last_unit = 0;  // candidates, in units of p tokens
  std::int32_t n_select = 0;                   // units to select, at most the number of candidates
  std::int32_t select_tokens = 0;              // tokens to select
  std::int32_t recent_from = 0;                // tokens [recent_from, N)
};

// Requires  check_region(rules) is null; n_tokens >= 1.
Region region_at(const RegionRules& rules, std::int32_t n_tokens);

// Start of the window at N = n_tokens, whether or not all is attended: units below it are complete and have left it.
std::int32_t window_begin(const RegionRules& rules, std::int32_t n_tokens);
// The region where units are lists (partition.h): n_units of them hold the tokens [sink, grouped), the window is
// everything after. The selection is counted in tokens (what the budget leaves), so n_select is unused.
Region list_region_at(const RegionRules& rules, std::int32_t n_tokens, std::int32_t grouped, std::int32_t n_units);

// Null when the rules are valid; else the reason, for the user.
const char* check_region(const RegionRules& rules);
// The smallest budget that leaves a unit to select beside these sinks and this window.
std::int64_t least_budget(const RegionRules& rules);

}  // namespace mneme

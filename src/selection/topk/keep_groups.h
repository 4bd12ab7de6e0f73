// The first level of a scan in two levels: a coarse score of every group of units (CoarseIndex), of which the best are
// scored in full.
//
//   coarse  scores of a query for groups of units
//   pool    as full scores are, over the groups
//   keep    the best groups: the share of them that TwoLevelScan::share says, rounded up, and no fewer than hold as many
//           units as will be selected
//   full    scores of their units; all others score -inf
//
// Sketches: a group is a page, scored by its mean (sketch.h). Boxes: 16 pages; the bound of the box around their boxes.
//
// Ties   the larger group first.   NaN  of a coarse score: below -inf.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/selection/region/unit_groups.h"
#include "src/selection/topk/topk.h"

namespace mneme {

// The units of the best groups, ascending.   scores [groups.size()]; n_units: that will be selected
void keep_groups_ref(std::span<const float> scores, const UnitGroups& groups, float share, std::int32_t n_units,
                     std::vector<std::int32_t>& units);
void keep_groups_cpu(std::span<const float> scores, const UnitGroups& groups, float share, std::int32_t n_units,
                     std::vector<std::int32_t>& units, TopkScratch& scratch);

}  // namespace mneme

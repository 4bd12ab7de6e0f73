// Figures from records of `mneme eval --suite`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/eval/figures/chart.h"
#include "apps/eval/runs/suite_record.h"

namespace mneme::eval {

// What a layer did, one row a method, one column a layer: mean tokens of a KV head, or shares in percent. Methods
// without the quantity are left out.
//
// Requires  what: "budget", "corrections" or "turnover".
HeatMap layer_map(const std::vector<SuiteRecord>& records, std::string_view what);
// The correction rate along answers, a line a method, from records made with --along.
LineChart correction_chart(const std::vector<SuiteRecord>& records);
// Mean score by depth of the fact (columns) and length (rows), a map a method.
std::vector<HeatMap> depth_maps(const std::vector<SuiteRecord>& records);

}  // namespace mneme::eval

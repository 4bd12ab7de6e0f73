// Long answers of a suite as tables and JSON: what a method did along them, and which of their lines are right.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/eval/runs/suite_record.h"

namespace mneme::eval {

// The points along answers, a row a point, with shares since the point before; empty without points.
std::string along_markdown(const std::vector<SuiteRecord>& records);
nlohmann::json along_json(const std::vector<SuiteRecord>& records);

// Right lines of long answers in percent, by eighths of the reference; empty without such answers.
std::string lines_markdown(const std::vector<SuiteRecord>& records);
nlohmann::json lines_json(const std::vector<SuiteRecord>& records);

}  // namespace mneme::eval

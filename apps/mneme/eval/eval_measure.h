// Accuracy of methods as tables, JSON and a plot, for `mneme eval` and `mneme eval ablate`.
#pragma once

#include <string>
#include <vector>

#include "apps/eval/report.h"
#include "apps/mneme/eval/eval_bench.h"

namespace mneme::cli {

// Asks every question under every method and returns the records. Appends each record to `run_file`, if given; an
// interrupted run continues from it, and a finished one can be extended by contexts, tasks or lengths.
//
// Errors  kOption: the file has other settings; a method cannot be compiled. kFile.
std::vector<eval::CellRecord> measure(EvalBench& bench, const EvalSetup& o, const std::vector<eval::MethodSpec>& specs,
                                      const std::string& run_file);

// Settings of every method, by label.
nlohmann::json methods_json(const std::vector<eval::MethodSpec>& specs);

}  // namespace mneme::cli

// Right answers of methods, as tables, JSON and a plot: what `mneme eval` and `mneme eval ablate` do.
#pragma once

#include <string>
#include <vector>

#include "src/cli/eval_bench.h"
#include "src/eval/report.h"

namespace mneme::cli {

// Asks everything of every method and returns all records. `run_file`, if any, takes each record as it is made; a run
// that was interrupted goes on from it, and a finished one may be extended by more contexts, tasks or lengths.
//
// Errors  kOption: the file is of a run with other settings; a method cannot be compiled. kFile.
std::vector<eval::CellRecord> measure(EvalBench& bench, const EvalSetup& o, const std::vector<eval::MethodSpec>& specs,
                                      const std::string& run_file);

// Settings of every method, by label.
nlohmann::json methods_json(const std::vector<eval::MethodSpec>& specs);

}  // namespace mneme::cli

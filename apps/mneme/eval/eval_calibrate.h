// Calibration over a model's own contexts.
#pragma once

#include "src/cli/eval_bench.h"
#include "src/eval/gate_record.h"

namespace mneme::cli {

// Errors  kOption: the method has no gate.
eval::Calibration calibrate_method(EvalBench& bench, const EvalSetup& o, const eval::MethodSpec& spec,
                                   const eval::CalibrationOptions& options);

}  // namespace mneme::cli

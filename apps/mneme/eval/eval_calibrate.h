// Calibration over a model's own contexts.
#pragma once

#include "apps/eval/gate_record.h"
#include "apps/mneme/eval/eval_bench.h"

namespace mneme::cli {

// Errors  kOption: the method has no gate.
eval::Calibration calibrate_method(EvalBench& bench, const EvalSetup& o, const eval::MethodSpec& spec,
                                   const eval::CalibrationOptions& options);

}  // namespace mneme::cli

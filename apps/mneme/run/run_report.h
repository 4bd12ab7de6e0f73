// Statistics of `mneme run` as text and JSON.
#pragma once

#include <cstdint>
#include <string>

#include "mneme/mneme.h"

namespace mneme::cli {

struct RunReport {
  std::string model_path;
  ModelInfo model;
  EngineOptions engine;  // in force
  Answer answer;
  double load_seconds = 0;
  std::int64_t peak_memory_bytes = 0;
};

// Peak resident memory of this process (VmHWM); 0 where unknown.
std::int64_t peak_memory_bytes();

// A few lines for --stats.
std::string stats_text(const RunReport& report);
// One object on one line for --json.
std::string report_json(const RunReport& report);

}  // namespace mneme::cli

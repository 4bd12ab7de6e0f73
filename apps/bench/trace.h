// A trace that chrome://tracing and Perfetto open.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/perf/bench.h"

namespace mneme {

struct NamedTrace {
  std::string name;  // of the steps: "decode @ d8192, batch 4"
  std::span<const StepTrace> steps;
};

// Errors  kFile: cannot be written.
void write_chrome_trace(const std::filesystem::path& path, std::span<const NamedTrace> traces);

}  // namespace mneme

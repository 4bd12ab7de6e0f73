// Writes a trace for chrome://tracing and Perfetto.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "apps/bench/timed/bench.h"

namespace mneme {

struct NamedTrace {
  std::string name;  // of the steps: "decode @ d8192, batch 4"
  std::span<const StepTrace> steps;
};

// Errors  kFile: cannot be written.
void write_chrome_trace(const std::filesystem::path& path, std::span<const NamedTrace> traces);

}  // namespace mneme

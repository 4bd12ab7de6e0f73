// The machine as JSON, and the command: where a result comes from.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench/machine.h"
#include "src/cuda/device.h"

namespace mneme::cli {

nlohmann::ordered_json machine_json(const Machine& machine);
nlohmann::ordered_json device_json(const DeviceInfo& device);

// The command line as a user types it: "mneme" without its folder, "mneme bench" where mneme-bench runs.
std::vector<std::string> command_line();

}  // namespace mneme::cli

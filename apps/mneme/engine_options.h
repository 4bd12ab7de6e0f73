// Options of the engine that mneme run and mneme serve share, in the group "Memory and speed".
#pragma once

#include <CLI/CLI.hpp>

#include "mneme/options.h"

namespace mneme::cli {

inline constexpr const char* kEngineGroup = "Memory and speed";

// --device
void add_device_option(CLI::App& command, EngineOptions& options);
// --kv-offloading-size, --kv-spill, --kv-spill-gib
void add_kv_room_options(CLI::App& command, EngineOptions& options);
// --kv-store, --gpu-layers, --kv-cache-dtype, --threads, --no-pin, --numa.
void add_machine_options(CLI::App& command, EngineOptions& options, bool& no_pin);
// --deterministic
void add_deterministic_option(CLI::App& command, EngineOptions& options);
void add_speculative_option(CLI::App& command, EngineOptions& options);

}  // namespace mneme::cli

// `mneme serve`.
#pragma once

#include <CLI/CLI.hpp>

namespace mneme::cli {

void add_serve(CLI::App& app, int& code);

}  // namespace mneme::cli

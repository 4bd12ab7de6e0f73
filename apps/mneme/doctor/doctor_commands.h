// `mneme doctor` and `mneme plan`.
#pragma once

namespace CLI {
class App;
}

namespace mneme::cli {

void add_doctor(CLI::App& app, int& code);
void add_plan(CLI::App& app, int& code);

}  // namespace mneme::cli

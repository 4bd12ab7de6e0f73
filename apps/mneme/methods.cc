// mneme methods: what answers can attend, and what combines.
#include <fmt/format.h>

#include <cstdio>

#include "apps/mneme/commands.h"
#include "src/recipes/describe.h"

namespace mneme::cli {

void add_methods(CLI::App& app, int& code) {
  CLI::App* command = app.add_subcommand("methods", "List KV methods, their settings, and what combines (Markdown)");
  command->callback([&code] {
    fmt::print("{}", methods_markdown());
    code = 0;
  });
}

}  // namespace mneme::cli

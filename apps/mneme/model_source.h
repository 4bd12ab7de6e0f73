// The model of a command: a path, or a repository that it is fetched from.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::cli {

struct ModelSource {
  std::string path;  // a file or folder
  std::string repo;  // "OWNER/NAME[:QUANT]" of -hf

  bool given() const { return !path.empty() || !repo.empty(); }
};

// -hf, --hf-repo.
CLI::Option* add_hf_option(CLI::App& command, ModelSource& source);

// Errors  kOption: neither or both of `option` and -hf, or -hf with what cannot be a repository's name.
void expect_model(const ModelSource& source, std::string_view option = "--model");

// The path to open, fetched where -hf names a repository: a line on standard error for each file, and on a terminal a
// bar where `progress`.
//
// Errors  as expect_model() and hub::fetch_model().
std::string model_file(const ModelSource& source, bool progress);

// The command line with -hf spelled --hf-repo: an option parser takes it for -h and a value. What is an option's value
// (-p -hf) stays.
std::vector<const char*> with_long_hf(const CLI::App& app, int argc, const char* const* argv);

}  // namespace mneme::cli

#include "apps/mneme/model_source.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "apps/hub/hub.h"
#include "apps/hub/repo_id.h"
#include "apps/mneme/options.h"
#include "apps/mneme/progress_bar.h"
#include "src/base/error.h"
#include "src/formats/wrong_file.h"

namespace mneme::cli {
namespace {

constexpr std::int64_t kMegabyte = 1'000'000;

const CLI::App* subcommand(const CLI::App& app, std::string_view name) {
  for (const CLI::App* sub : app.get_subcommands({}))
    if (sub->get_name() == name) return sub;
  return nullptr;
}

// A repository's name, with or without a quantisation, where a path was expected: "Qwen/Qwen3-8B".
bool names_repository(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) || path.ends_with(".gguf")) return false;
  try {
    return names_hub_model(hub::parse_repo_id(path).id());
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

CLI::Option* add_hf_option(CLI::App& c, ModelSource& source) {
  return c
      .add_option(
          "--hf-repo", source.repo,
          "Short: -hf. Fetch the model from Hugging Face (HF_ENDPOINT, HF_TOKEN) into its cache (HF_HOME), once; "
          "QUANT picks one of several GGUF files (default: Q4_K_M, else Q8_0)")
      ->type_name("OWNER/NAME[:QUANT]")
      ->check(not_empty());
}

void expect_model(const ModelSource& source, std::string_view option) {
  if (!source.given()) fail(ErrorKind::kOption, "{} is required, or -hf OWNER/NAME[:QUANT]", option);
  if (!source.path.empty() && !source.repo.empty())
    fail(ErrorKind::kOption, "{} and -hf: expected one of the two, found {} and {}", option, source.path, source.repo);
  if (!source.repo.empty()) hub::parse_repo_id(source.repo);  // now, not after a prompt was read or an index built
  if (!source.path.empty() && names_repository(source.path))
    fail(ErrorKind::kFile, "{} {}: no such file or folder; -hf {} fetches it from Hugging Face", option, source.path,
         source.path);
}

std::string model_file(const ModelSource& source, bool progress) {
  expect_model(source);
  if (source.repo.empty()) return source.path;
  std::optional<ProgressBar> bar;  // one for each file, which measures its rate
  const hub::FetchEvents events{
      .on_file =
          [&](const std::string& path, std::int64_t bytes) {
            bar.emplace(ProgressBar::mode_for_stderr(progress));
            fmt::print(stderr, "mneme: fetching {}, {} MB\n", path, grouped((bytes + kMegabyte - 1) / kMegabyte));
          },
      .on_progress = [&](std::int64_t done,
                         std::int64_t total) { bar->show("fetching, MB", done / kMegabyte, total / kMegabyte); },
      .on_note =
          [&](const std::string& line) {
            if (bar) bar->clear();
            fmt::print(stderr, "mneme: {}\n", line);
          }};
  return hub::fetch_model(source.repo, hub::hub_settings_from_environment(), events).string();
}

std::vector<const char*> with_long_hf(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<const char*> out(argv, argv + argc);
  const CLI::App* command = &app;
  bool is_value = true;  // the program's name is none of its options
  for (const char*& argument : out) {
    const std::string_view text = argument;
    if (is_value) {
      is_value = false;
      continue;
    }
    if (text == "--") break;
    if (text == "-hf") argument = "--hf-repo";
    if (const CLI::App* sub = subcommand(*command, text)) command = sub;
    const CLI::Option* option = text.starts_with('-') ? command->get_option_no_throw(argument) : nullptr;
    is_value = option != nullptr && option->get_items_expected_min() > 0;
  }
  return out;
}

}  // namespace mneme::cli

// mneme convert IN OUT.gguf --type q8_0, or -hf OWNER/NAME OUT.gguf: a checkpoint as GGUF, its matrices in another type.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "apps/mneme/commands.h"
#include "apps/mneme/model_source.h"
#include "apps/mneme/progress_bar.h"
#include "mneme/error.h"
#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/formats/checkpoint.h"
#include "src/formats/open/convert.h"

namespace mneme::cli {
namespace {

constexpr std::array kTypes = {DType::kQ8_0,   DType::kQ4_0,  DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                               DType::kQ2_K,   DType::kQ3_K,  DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                               DType::kIQ4_NL, DType::kMXFP4, DType::kBF16, DType::kF16,  DType::kF32};

struct ConvertOptions {
  ModelSource from;
  std::string to, type_name = "q8_0";
  bool force = false;
  DType type = DType::kQ8_0;
};

DType type_named(std::string_view given) {
  const std::string name = ascii_lower(given);
  std::string known;
  for (const DType type : kTypes) {
    if (name == dtype_name(type)) return type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", dtype_name(type));
  }
  fail(ErrorKind::kOption, "--type {}: expected one of {}", name, known);
}

void check_target(const ConvertOptions& o) {
  std::error_code ignored;
  if (std::filesystem::equivalent(o.from.path, o.to, ignored))
    fail(ErrorKind::kOption, "{}: is the input itself; name another file to write", o.to);
  if (!o.force && std::filesystem::exists(std::filesystem::symlink_status(o.to, ignored)))
    fail(ErrorKind::kOption, "{}: exists already; --force replaces it", o.to);
}

int convert(ConvertOptions options) {
  options.type = type_named(options.type_name);
  if (!options.from.repo.empty() && options.to.empty()) options.to.swap(options.from.path);  // -hf REPO to
  expect_model(options.from, "from");
  if (options.to.empty()) fail(ErrorKind::kOption, "to is required: the GGUF file to write");
  check_target(options);
  const auto checkpoint = Checkpoint::open(model_file(options.from, true));
  ProgressBar bar(ProgressBar::mode_for_stderr(true));
  const ConvertResult result = convert_to_gguf(
      *checkpoint, options.to, options.type,
      [&bar](std::string_view what, std::int64_t done, std::int64_t total) { bar.show(what, done, total); });
  bar.clear();
  fmt::print(stderr, "{}: {} tensors, {} bytes\n", options.to, result.tensors, result.bytes);
  if (result.in_narrower > 0)
    fmt::print(stderr, "{} of them in {}, because their rows are no multiple of {}\n", result.in_narrower,
               dtype_name(result.narrower), dtype_info(options.type).block);
  if (result.kept_in_bf16 > 0)
    fmt::print(stderr, "{} of them in bf16, because their rows are no multiple of {}\n", result.kept_in_bf16,
               dtype_info(result.narrower != DType::kBF16 ? result.narrower : options.type).block);
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, int& code) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command = app.add_subcommand("convert", "Convert a model to a GGUF file, with weights of another type");
  command->add_option("from,-m,--model", options->from.path, "Hugging Face folder or GGUF file (not with -hf)");
  command->add_option("to", options->to, "The GGUF file to write (required)");
  add_hf_option(*command, options->from);
  command
      ->add_option("--type", options->type_name,
                   "Type of the weight matrices: q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, "
                   "mxfp4, bf16, "
                   "f16 or f32; norms and biases stay f32")
      ->type_name("TYPE")
      ->capture_default_str();
  command->add_flag("--force", options->force, "Overwrite an existing file");
  command->callback([options, &code] { code = convert(*options); });
}

}  // namespace mneme::cli

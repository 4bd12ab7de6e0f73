// mneme convert IN OUT.gguf --type q8_0: a checkpoint as GGUF, its matrices in another type.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>

#include "mneme/error.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/convert.h"
#include "src/cli/commands.h"
#include "src/cli/progress_bar.h"

namespace mneme::cli {
namespace {

struct ConvertOptions {
  std::string from, to;
  DType type = DType::kQ8_0;
};

int convert(const ConvertOptions& options) {
  const auto checkpoint = Checkpoint::open(options.from);
  ProgressBar bar(ProgressBar::mode_for_stderr(true));
  const ConvertResult result = convert_to_gguf(
      *checkpoint, options.to, options.type,
      [&bar](std::string_view what, std::int64_t done, std::int64_t total) { bar.show(what, done, total); });
  bar.clear();
  fmt::print(stderr, "{}: {} tensors, {} bytes\n", options.to, result.tensors, result.bytes);
  if (result.kept_in_bf16 > 0)
    fmt::print(stderr, "{} of them in bf16, because their rows are no multiple of {}\n", result.kept_in_bf16,
               dtype_info(options.type).block);
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, int& code) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* command = app.add_subcommand("convert", "Write a model as a GGUF file, its matrices in another type");
  command->add_option("from", options->from, "The folder of a Hugging Face model, or a GGUF file")->required();
  command->add_option("to", options->to, "The GGUF file to write")->required();
  static const std::map<std::string, DType> kTypes = {{"q8_0", DType::kQ8_0},
                                                      {"q4_0", DType::kQ4_0},
                                                      {"bf16", DType::kBF16},
                                                      {"f16", DType::kF16},
                                                      {"f32", DType::kF32}};
  command->add_option("--type", options->type, "Type of the matrices (default q8_0); norms and biases stay f32")
      ->transform(CLI::CheckedTransformer(kTypes, CLI::ignore_case))
      ->option_text("q8_0|q4_0|bf16|f16|f32");
  command->callback([options, &code] { code = convert(*options); });
}

}  // namespace mneme::cli

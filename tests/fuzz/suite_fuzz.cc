// Any file of questions: prompts and references, or an error that names what is wrong.
//
// The first byte selects the suite; the rest is the file. Runs of mneme eval --suite are read as well.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "apps/eval/runs/run_file.h"
#include "apps/eval/suites/suite.h"
#include "src/base/check.h"
#include "src/base/error.h"

namespace {

using namespace mneme;

struct Source {
  std::string_view suite, file;
};
constexpr Source kSources[] = {
    {"longbench", "hotpotqa.jsonl"},
    {"longbench", "trec_e.jsonl"},
    {"longbench-v2", "data.json"},
    {"infinitebench", "code_run.jsonl"},
    {"infinitebench", "code_debug.jsonl"},
    {"infinitebench", "math_find.jsonl"},
    {"ruler", "vt.jsonl"},
    {"longgenbench", "plans.json"},
    {"math", "math.jsonl"},
    {"gpqa", "gpqa.csv"},
    {"jsonl", "mine.jsonl"},
    {"", "run.jsonl"},
};

// Every answer of a well-formed row can be scored.
void read_all(const Source& source, const std::filesystem::path& file) {
  eval::SuiteSetting setting{.data = file};
  for (const eval::SuiteContext& context : eval::read_suite(eval::find_suite(source.suite), setting))
    for (const eval::SuiteItem& item : context.make()) {
      MNEME_CHECK(item.question_bytes <= item.prompt.size(), "the question is longer than its prompt");
      MNEME_CHECK(!item.reference.answers.empty(), "a question without an answer");
      for (const std::string& answer : {item.reference.answers.front(), item.prompt.substr(0, 200)}) {
        const double score = eval::find_scorer(item.scorer).score(answer, item.reference);
        MNEME_CHECK(score >= 0 && score <= 1, "a score of {}", score);
      }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::filesystem::path folder = [] {
    const auto path = std::filesystem::temp_directory_path() / ("mneme-suite-fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directories(path);
    return path;
  }();
  const Source& source = kSources[data[0] % std::size(kSources)];
  const std::filesystem::path file = folder / source.file;
  std::ofstream(file, std::ios::binary) << std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (source.suite.empty())
      eval::merge_runs({file.string()});
    else
      read_all(source, file);
  } catch (const Error&) {
  }
  return 0;
}

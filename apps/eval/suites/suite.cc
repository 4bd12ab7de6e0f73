#include "apps/eval/suites/suite.h"

#include <fmt/ranges.h>

#include <array>

#include "src/base/error.h"

namespace mneme::eval {
namespace {

constexpr std::array kTable = {
    SuiteEntry{"longbench", "LongBench: a folder of TASK.jsonl (or TASK_e.jsonl)", SuiteData::kNeeded, true, 0,
               read_longbench},
    SuiteEntry{"longbench-v2", "LongBench v2: data.json", SuiteData::kNeeded, true, 120000, read_longbench_v2},
    SuiteEntry{"infinitebench", "InfiniteBench: a folder of TASK.jsonl", SuiteData::kNeeded, true, 128000,
               read_infinitebench},
    SuiteEntry{"ruler", "RULER's 13 tasks; --data: a folder of TASK/validation.jsonl, or of what its generator reads",
               SuiteData::kOptional, true, 0, read_ruler},
    SuiteEntry{"niah",
               "a needle at 10 depths; --tasks look_alikes: beside six like it; --data: a folder of .txt essays",
               SuiteData::kOptional, true, 0, read_niah},
    SuiteEntry{"passkey", "a pass key at 10 depths of repeated lines", SuiteData::kNone, true, 0, read_passkey},
    SuiteEntry{"longgenbench", "LongGenBench (Wu et al.): Dataset_short.json or Dataset_long.json", SuiteData::kNeeded,
               false, 0, read_longgenbench},
    SuiteEntry{"math", "problems with boxed answers: MATH-500, AIME, GSM8K as .jsonl", SuiteData::kNeeded, false, 0,
               read_math},
    SuiteEntry{"gpqa", "GPQA: gpqa_diamond.csv or another of its files", SuiteData::kNeeded, false, 0, read_gpqa},
    SuiteEntry{"pg19", "perplexity of books, a token a step: a .txt file or a folder of them", SuiteData::kNeeded, true,
               0, read_pg19, SuiteMeasure::kPerplexity},
    SuiteEntry{"facts", "the tasks of mneme eval, which the shipped model knows", SuiteData::kNone, true, 0,
               read_facts},
    SuiteEntry{"long", "answers of thousands of tokens over a context", SuiteData::kNone, true, 0, read_long},
    SuiteEntry{"jsonl", "your own .jsonl, by --template", SuiteData::kNeeded, true, 0, read_jsonl},
};

}  // namespace

std::span<const SuiteEntry> suite_table() {
  return kTable;
}

const SuiteEntry& find_suite(std::string_view name) {
  std::vector<std::string_view> names;
  for (const SuiteEntry& row : kTable) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  fail(ErrorKind::kOption, "no suite is called '{}'; there are: {}", name, fmt::join(names, ", "));
}

std::vector<SuiteContext> read_suite(const SuiteEntry& suite, const SuiteSetting& setting) {
  if (suite.data == SuiteData::kNeeded && setting.data.empty())
    fail(ErrorKind::kOption, "--suite {} needs --data PATH ({})", suite.name, suite.summary);
  if (suite.data == SuiteData::kNone && !setting.data.empty())
    fail(ErrorKind::kOption, "--suite {} makes its questions; it takes no --data", suite.name);
  std::vector<SuiteContext> contexts = suite.read(setting);
  if (contexts.empty())
    fail(ErrorKind::kOption, "--suite {}: no question is left of --data, --tasks and --contexts", suite.name);
  return contexts;
}

}  // namespace mneme::eval

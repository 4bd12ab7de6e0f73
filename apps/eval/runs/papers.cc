#include "apps/eval/runs/papers.h"

#include <fmt/ranges.h>

#include "src/base/error.h"

namespace mneme::eval {

std::span<const PaperEntry> paper_table() {
  static const std::vector<PaperEntry> table = {
      {"freekv",
       "FreeKV: LongBench v2, LongGenBench, reasoning",
       {"full", "window", "raas", "arkvale", "quest:unit=page:32", "freekv:tau=0.8", "freekv:tau=0.9", "mneme"},
       {2048},
       {"longbench-v2", "longgenbench", "math", "gpqa"}},
      {"louiskv",
       "LouisKV: long inputs and long answers",
       {"full", "window", "h2o", "quest", "arkvale", "clusterkv", "louiskv", "mneme"},
       {1024, 2048},
       {"longbench", "math", "long"}},
      {"fier",
       "FIER: LongBench, passkey and PG19 against the budget",
       {"full", "window", "h2o", "tova", "quest", "fier", "mneme"},
       {512, 1024, 2048, 4096},
       {"longbench", "passkey", "pg19"}},
      {"actqkv",
       "ActQKV: LongBench and InfiniteBench, prompts read in windows",
       {"full", "lm_infinite", "streaming_llm", "infllm", "q_llm", "quest", "actqkv", "mneme"},
       {2048},
       {"longbench", "infinitebench"}},
      {"refreekv",
       "ReFreeKV: what is left of a prompt without a budget that was set",
       {"full", "streaming_llm", "h2o", "snapkv", "pyramidkv", "adakv", "cake", "twilight", "refreekv", "mneme"},
       {1024},
       {"longbench", "math", "gpqa"},
       TableLayout::kTaskRows,
       true},
  };
  return table;
}

const PaperEntry& find_paper(std::string_view name) {
  std::vector<std::string_view> names;
  for (const PaperEntry& row : paper_table()) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  fail(ErrorKind::kOption, "no paper is called '{}'; there are: {}", name, fmt::join(names, ", "));
}

}  // namespace mneme::eval

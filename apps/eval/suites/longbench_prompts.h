// LongBench's 21 tasks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace mneme::eval {

struct LongBenchTask {
  std::string_view name;
  std::int32_t answer_tokens;
  std::string_view scorer;
  bool few_shot;  // no chat format; all but code: the answer's first line alone counts
  bool code;
  std::string_view prompt;  // {context}, {input}
};

// Source  THUDM/LongBench, dataset2prompt.json and dataset2maxlen.json (MIT); the wording is part of the benchmark.
std::span<const LongBenchTask> longbench_tasks();

}  // namespace mneme::eval

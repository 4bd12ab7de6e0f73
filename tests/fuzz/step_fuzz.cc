// Bytes as keys and values of a config.json or GGUF file: an Error, or a model of random weights that runs a step
// and gives numbers.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/check.h"
#include "tests/model/config_maker.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mneme;
  static ThreadPool threads(1);
  const auto config = test::config_of_bytes({data, size});
  if (!config) return 0;
  const auto logits = test::step_of(*config, {.pool = &threads});
  MNEME_CHECK(!logits || std::all_of(logits->begin(), logits->end(), [](float x) { return std::isfinite(x); }),
              "a logit is no number");
  return 0;
}

// Bytes as keys and values of a config.json or GGUF file: an Error, or a model of random weights that runs a step.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/model/config_maker.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mneme;
  static ThreadPool threads(1);
  if (const auto config = test::config_of_bytes({data, size})) test::step_of(*config, {.pool = &threads});
  return 0;
}

// One model and a short document for tests of the public API.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "mneme/mneme.h"
#include "tests/short_document.h"
#include "tests/test_threads.h"

namespace mneme {

inline const std::string kModel = MNEME_SOURCE_DIR "/models/needle-27m-q8_0.gguf";

class SharedModelTest : public ::testing::Test {
 protected:
  static LanguageModel& model() {
    static LanguageModel model(kModel, {.context = 2048,
                                        .kv_memory_bytes = 256 << 20,
                                        .max_batched_tokens = 64,
                                        .threads = kTestThreads,
                                        .pin_threads = false});
    return model;
  }
  static ErrorKind kind_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& e) {
      return e.kind();
    }
    ADD_FAILURE() << "nothing was thrown";
    return ErrorKind::kDevice;
  }
};

}  // namespace mneme

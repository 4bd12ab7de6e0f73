// What tests of saved sessions share: a folder of their own that goes with them, and what refuses an action.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "mneme/mneme.h"
#include "tests/error_message.h"

namespace mneme {

class SessionFiles {
 protected:
  SessionFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "mneme_session_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ / "a.session";
  }
  ~SessionFiles() { std::filesystem::remove_all(folder_); }

  // Some hundred tokens, with one fact behind the middle.
  static std::string long_document() {
    std::string text;
    for (int i = 0; i < 14; ++i) {
      text += "It was a dark evening, and the rain fell upon the roofs of the town.\n";
      if (i == 9) text += "The secret number of silver-harbour is 48213.\n";
      text += "The old man lit his pipe, and for some time nobody spoke.\n";
    }
    return text;
  }

  std::filesystem::path folder_, path_;
};

}  // namespace mneme

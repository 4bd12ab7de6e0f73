// Messages of errors that tests expect.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "mneme/error.h"

namespace mneme {

// The message of the Error that `action` throws, which is of this kind; empty where it throws none.
template <typename F>
std::string error_message(ErrorKind kind, const F& action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "";
}

}  // namespace mneme

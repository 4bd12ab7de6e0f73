#include "src/base/unchecked_loop.h"

#include <gtest/gtest.h>

#include <memory>

namespace mneme {
namespace {

TEST(CheckedBefore, WhatMayBeTouchedPasses) {
  const auto bytes = std::make_unique<char[]>(1000);
  expect_addressable(bytes.get(), 1000);
  expect_addressable(bytes.get() + 999, 1);
  expect_addressable(bytes.get(), 0);
}

#if defined(__SANITIZE_ADDRESS__)
TEST(CheckedBefore, OneByteBeyondIsReported) {
  const auto bytes = std::make_unique<char[]>(1000);
  EXPECT_DEATH(expect_addressable(bytes.get(), 1001), "heap-buffer-overflow");
  EXPECT_DEATH(expect_addressable(bytes.get() - 1, 3), "heap-buffer-overflow");
}
#endif

}  // namespace
}  // namespace mneme

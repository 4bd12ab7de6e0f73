#include "src/base/function_ref.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace mneme {
namespace {

int twice(FunctionRef<int(int)> f) {
  return f(f(1));
}

TEST(FunctionRef, CallsLambdasFunctionsAndStatefulObjects) {
  EXPECT_EQ(twice([](int x) { return x + 10; }), 21);
  int calls = 0;
  auto counting = [&calls](int x) {
    ++calls;
    return x;
  };
  EXPECT_EQ(twice(counting), 1);
  EXPECT_EQ(calls, 2);
}

TEST(FunctionRef, RefersAndDoesNotCopy) {
  auto owner = [p = std::make_unique<int>(5)](int x) mutable { return *p += x; };  // move-only: not copyable
  FunctionRef<int(int)> ref = owner;
  EXPECT_EQ(ref(1), 6);
  EXPECT_EQ(ref(1), 7);
}

TEST(FunctionRef, ForwardsReferences) {
  std::string s = "a";
  auto append = [](std::string& t) { t += "b"; };
  FunctionRef<void(std::string&)> ref = append;
  ref(s);
  EXPECT_EQ(s, "ab");
}

}  // namespace
}  // namespace mneme

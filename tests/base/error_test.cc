#include "src/base/error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "src/base/check.h"

namespace mneme {
namespace {

TEST(Error, CarriesKindAndMessage) {
  try {
    fail(ErrorKind::kFormat, "{}: expected {} bytes, found {}", "a.gguf", 8, 3);
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kFormat);
    EXPECT_STREQ(e.what(), "a.gguf: expected 8 bytes, found 3");
  }
}

TEST(Error, EveryKindHasANameOfItsOwn) {
  std::set<std::string> names;
  for (ErrorKind kind : {ErrorKind::kFile, ErrorKind::kFormat, ErrorKind::kUnsupported, ErrorKind::kOption,
                         ErrorKind::kRequest, ErrorKind::kResource, ErrorKind::kDevice})
    names.insert(error_kind_name(kind));
  EXPECT_EQ(names.size(), 7u);
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(CheckDeathTest, PrintsConditionMessageAndPlace) {
  MNEME_CHECK(1 + 1 == 2, "never printed");
  const int rows = 3;
  EXPECT_DEATH(MNEME_CHECK(rows == 4, "{} rows", rows), "internal error at .*error_test.cc:[0-9]+: rows == 4: 3 rows");
}

}  // namespace
}  // namespace mneme

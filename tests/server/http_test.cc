#include "src/server/http/http.h"

#include <gtest/gtest.h>

namespace mneme::server {
namespace {

TEST(HttpRequest, FindsHeadersAndParameters) {
  const HttpRequest request{.method = "POST",
                            .path = "/slots/0",
                            .query = "x=1&action=save&name=a%20b%2Fc+d&broken=%2&none",
                            .headers = {{"host", "a"}, {"host", "b"}},
                            .body = {}};
  EXPECT_EQ(request.header("host"), "a");
  EXPECT_EQ(request.header("authorization"), "");
  EXPECT_EQ(request.parameter("action"), "save");
  EXPECT_EQ(request.parameter("name"), "a b/c d");
  EXPECT_EQ(request.parameter("broken"), "%2");
  EXPECT_EQ(request.parameter("none"), "");
  EXPECT_EQ(request.parameter("ction"), "");
}

}  // namespace
}  // namespace mneme::server

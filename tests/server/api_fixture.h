// A server for all tests of a suite, and requests to it.
#pragma once

#include <gtest/gtest.h>

#include "tests/server/http_client.h"
#include "tests/server/running_server.h"

namespace mneme::server_test {

inline const nlohmann::json kMessages =
    nlohmann::json::array({{{"role", "user"}, {"content", "Where is the harbour?"}}});

class ApiFixture : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new RunningServer; }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }
  static std::uint16_t port() { return server_->port(); }
  static Response complete(const nlohmann::json& body) { return post(port(), "/v1/completions", body); }
  static Response chat(nlohmann::json body) {
    if (!body.contains("messages")) body["messages"] = kMessages;
    return post(port(), "/v1/chat/completions", body);
  }

  inline static RunningServer* server_ = nullptr;
};

}  // namespace mneme::server_test

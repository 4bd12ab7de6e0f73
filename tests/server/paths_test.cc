// Requests that no route answers: paths that nearly are one, and what browsers ask before they send.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/server/http_client.h"
#include "tests/server/running_server.h"

namespace mneme::server_test {
namespace {

TEST(Paths, TellWhichOneWasMeant) {
  RunningServer server;
  for (const auto& [path, meant] :
       std::vector<std::pair<std::string, std::string>>{{"/chat/completions", "/v1/chat/completions"},
                                                        {"/completions", "/v1/completions"},
                                                        {"/models", "/v1/models"},
                                                        {"/v1/v1/chat/completions", "/v1/chat/completions"},
                                                        {"/v1/chat/completions/", "/v1/chat/completions"},
                                                        {"/v1/chat/completion", "/v1/chat/completions"},
                                                        {"/v1/health", "/health"},
                                                        {"/v1/tokenise", "/tokenize"}}) {
    const Response r = post(server.port(), path, std::string("{}"));
    EXPECT_EQ(r.status, 404);
    EXPECT_EQ(r.error_message(), "there is nothing at " + path + ": did you mean " + meant + "?");
  }
  EXPECT_EQ(get(server.port(), "/v1/embeddings").error_message(), "there is nothing at /v1/embeddings");
}

TEST(Browsers, OfNamedOriginsOnly) {
  server::ServerOptions options = RunningServer::small();
  options.listen.cors_origins = {"https://mine.example"};
  RunningServer server(options);
  const Response mine = get(server.port(), "/health", {{"Origin", "https://mine.example"}});
  EXPECT_EQ(mine.headers.at("access-control-allow-origin"), "https://mine.example");
  EXPECT_FALSE(get(server.port(), "/health", {{"Origin", "https://other.example"}})
                   .headers.contains("access-control-allow-origin"));
  const Response options_of =
      Client(server.port()).request("OPTIONS", "/v1/completions", {}, {{"Origin", "https://mine.example"}});
  EXPECT_EQ(options_of.status, 204);
}

Response preflight(std::uint16_t port, const std::string& path, const std::string& origin) {
  return Client(port).request("OPTIONS", path, {},
                              {{"Origin", origin},
                               {"Access-Control-Request-Method", "POST"},
                               {"Access-Control-Request-Headers", "authorization,x-stainless-os"}});
}

// A browser shows its page an answer only where it names the page's origin: errors too.
TEST(Browsers, ErrorsAndOptionsNameTheOriginThatMayCall) {
  server::ServerOptions options = RunningServer::small();
  options.listen.cors_origins = {"https://mine.example"};
  options.listen.api_keys = {"secret"};
  options.limits.max_body_bytes = 100;
  RunningServer server(options);
  const Headers mine = {{"Origin", "https://mine.example"}};
  const auto origin = [](const Response& r) -> std::string {
    const auto found = r.headers.find("access-control-allow-origin");
    return found == r.headers.end() ? std::string() : found->second;
  };
  for (const Response& r : {get(server.port(), "/v1/models", mine), get(server.port(), "/nowhere", mine),
                            post(server.port(), "/health", std::string("{}"), mine),
                            post(server.port(), "/v1/completions", std::string(101, 'x'), mine)}) {
    EXPECT_GE(r.status, 400);
    EXPECT_EQ(origin(r), "https://mine.example") << r.status;
    EXPECT_EQ(r.headers.at("vary"), "Origin");
  }
  for (const char* path : {"/v1/chat/completions", "/nowhere"}) {
    const Response r = preflight(server.port(), path, "https://mine.example");
    EXPECT_EQ(r.status, 204) << path;
    EXPECT_EQ(origin(r), "https://mine.example");
    EXPECT_EQ(r.headers.at("access-control-allow-headers"), "authorization,x-stainless-os");
    EXPECT_NE(r.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
  }
  EXPECT_EQ(preflight(server.port(), "/v1/chat/completions", "https://other.example").status, 403);
}

TEST(Browsers, WithoutOriginsAPreflightIsToldWhatToDo) {
  RunningServer server;
  const Response refused = preflight(server.port(), "/v1/chat/completions", "https://mine.example");
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.error_message().find("--cors-origin https://mine.example"), std::string::npos) << refused.body;
  EXPECT_FALSE(refused.headers.contains("access-control-allow-origin"));
  const Response plain = Client(server.port()).request("OPTIONS", "/v1/completions");
  EXPECT_EQ(plain.status, 204);
  EXPECT_NE(plain.headers.at("allow").find("POST"), std::string::npos);
}

}  // namespace
}  // namespace mneme::server_test

// Who may ask, how much, and how long.
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <thread>

#include "mneme/error.h"
#include "tests/apps/mneme/program.h"
#include "tests/sanitized.h"
#include "tests/server/http_client.h"
#include "tests/server/running_server.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;

const json kLongAnswer = {
    {"prompt", "Once upon a time"}, {"max_tokens", 4000}, {"temperature", 0}, {"ignore_eos", true}};

// Of a stream, whose head comes at once.
std::string position_told(Client& client) {
  return client.read_response(true).headers["x-queue-position"];
}

TEST(Limits, AsksForAKey) {
  server::ServerOptions options = RunningServer::small();
  options.listen.api_keys = {"secret", "other"};
  RunningServer server(options);
  const auto status = [&](const std::string& value) {
    return get(server.port(), "/v1/models", {{"Authorization", value}}).status;
  };
  EXPECT_EQ(get(server.port(), "/v1/models").status, 401);
  EXPECT_EQ(get(server.port(), "/metrics").status, 401);
  EXPECT_EQ(get(server.port(), "/health").status, 200);
  for (const char* wrong : {"Bearer ", "Bearer secre", "Bearer secretx", "secret", "Bearer Secret", "Basic secret"})
    EXPECT_EQ(status(wrong), 401) << wrong;
  EXPECT_EQ(status("Bearer secret"), 200);
  EXPECT_EQ(status("Bearer other"), 200);
  EXPECT_EQ(post(server.port(), "/v1/completions", json{{"prompt", "x"}}).status, 401);
  // The scheme's name has no case.
  EXPECT_EQ(status("bearer secret"), 200);
  EXPECT_EQ(status("BEARER other"), 200);
  EXPECT_EQ(status("bearersecret"), 401);
  // With a key, names do not matter.
  EXPECT_EQ(get(server.port(), "/v1/models", {{"Authorization", "Bearer secret"}, {"Host", "box.example"}}).status,
            200);
}

TEST(Limits, KeysHaveLimitsOfTheirOwn) {
  server::ServerOptions options = RunningServer::small();
  options.listen.key_policies = {{.key = "a", .name = "batch", .priority = 5, .max_running = 1, .max_in_flight = 2},
                                 {.key = "b", .name = "people"}};
  RunningServer server(options);
  const Headers batch = {{"Authorization", "Bearer a"}};
  server.metric_headers = {{"Authorization", "Bearer b"}};
  EXPECT_EQ(get(server.port(), "/v1/models").status, 401);
  EXPECT_EQ(get(server.port(), "/v1/models", {{"Authorization", "Bearer c"}}).status, 401);
  EXPECT_EQ(get(server.port(), "/v1/models", {{"Authorization", "Bearer b"}}).status, 200);
  Client first(server.port()), second(server.port());
  first.send_request("POST", "/v1/completions", kLongAnswer.dump(), batch);
  second.send_request("POST", "/v1/completions", kLongAnswer.dump(), batch);
  while (server.metric("num_requests_running") < 1 || server.metric("num_requests_waiting") < 1)
    std::this_thread::yield();
  // One of its answers runs, one waits, a third is refused; another key's starts at once, before the one that waits.
  const Response refused = post(server.port(), "/v1/completions", json{{"prompt", "x"}}, batch);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.json()["error"]["code"], "key_limit") << refused.body;
  EXPECT_NE(refused.error_message().find("\"batch\""), std::string::npos) << refused.body;
  const Response other =
      post(server.port(), "/v1/completions", json{{"prompt", "x"}, {"max_tokens", 1}}, {{"Authorization", "Bearer b"}});
  EXPECT_EQ(other.status, 200);
  EXPECT_EQ(other.headers.at("x-queue-position"), "0") << "what waits is less urgent";
  EXPECT_EQ(server.metric("num_requests_waiting"), 1);
  first.close();
  second.close();
  EXPECT_TRUE(server.idle());
  EXPECT_EQ(post(server.port(), "/v1/completions", json{{"prompt", "x"}, {"max_tokens", 1}}, batch).status, 200);
}

TEST(Limits, AKeyMayAskForLessUrgencyAndNeverForMore) {
  server::ServerOptions options = RunningServer::small();
  options.engine.max_sequences = 1;
  options.listen.key_policies = {{.key = "a", .name = "batch", .priority = 5}, {.key = "b", .name = "people"}};
  RunningServer server(options);
  const Headers batch = {{"Authorization", "Bearer a"}}, people = {{"Authorization", "Bearer b"}};
  server.metric_headers = people;
  json streamed = kLongAnswer;
  streamed["stream"] = true;
  std::vector<std::unique_ptr<Client>> clients;
  // `position`: answers that go before it when it comes.
  const auto ask = [&](const Headers& key, std::optional<int> priority, int position) {
    json body = streamed;
    if (priority) body["priority"] = *priority;
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send_request("POST", "/v1/completions", body.dump(), key);
    EXPECT_EQ(position_told(*clients.back()), std::to_string(position));
  };
  ask(people, -1000, 0);
  while (server.metric("num_requests_running") < 1) std::this_thread::yield();
  ask(people, std::nullopt, 0);
  ask(batch, -1000, 1);  // behind the people's, whatever it asks for
  ask(people, 9, 2);     // less urgent than its key: behind both
}

TEST(Limits, AnswersTellTheirPositionInTheQueue) {
  server::ServerOptions options = RunningServer::small();
  options.engine.max_sequences = 1;
  RunningServer server(options);
  json streamed = kLongAnswer;
  streamed["stream"] = true;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send_request("POST", "/v1/completions", streamed.dump());
    // The first one waits for nobody, and runs when the second comes.
    EXPECT_EQ(position_told(*clients.back()), std::to_string(std::max(0, i - 1))) << i;
    while (i == 0 && server.metric("num_requests_running") < 1) std::this_thread::yield();
  }
  json urgent = streamed;
  urgent["priority"] = -1;
  Client last(server.port());
  last.send_request("POST", "/v1/completions", urgent.dump());
  EXPECT_EQ(position_told(last), "0");
}

TEST(Limits, TheFileOfKeysIsChecked) {
  const auto refused = [](const std::string& text) {
    try {
      server::parse_key_policies(text, "keys.json");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const auto keys = server::parse_key_policies(
      R"({"keys": [{"key": "a", "name": "A", "priority": -3, "max_running": 2, "max_in_flight": 9},
                   {"key": "b", "name": "B"}]})",
      "keys.json");
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].priority, -3);
  EXPECT_EQ(keys[0].max_running, 2);
  EXPECT_EQ(keys[0].max_in_flight, 9);
  EXPECT_EQ(keys[1].max_running, 0);
  for (const char* text :
       {"", "[]", R"({"keys": []})", R"({"keys": [{"key": "a"}]})", R"({"keys": [{"name": "A"}]})",
        R"({"keys": [{"key": "", "name": "A"}]})", R"({"keys": [{"key": "a", "name": "A", "limit": 3}]})",
        R"({"keys": [{"key": "a", "name": "A", "max_running": -1}]})",
        R"({"keys": [{"key": "a", "name": "A", "priority": 10000000}]})",
        R"({"keys": [{"key": "a", "name": "A"}, {"key": "a", "name": "B"}]})",
        R"({"keys": [{"key": "a", "name": "A"}, {"key": "b", "name": "A"}]})",
        R"({"keys": [{"key": 3, "name": "A"}]})"})
    EXPECT_NE(refused(text).find("keys.json"), std::string::npos) << text << ": " << refused(text);
  // What is secret stands in no message.
  EXPECT_EQ(refused(R"({"keys": [{"key": "hush", "name": "A"}, {"key": "hush", "name": "B"}]})").find("hush"),
            std::string::npos);
}

TEST(Limits, TurnsAwayWhatTheQueueDoesNotHold) {
  server::ServerOptions options = RunningServer::small();
  options.engine.max_sequences = 1;
  options.limits.max_queue = 1;
  RunningServer server(options);
  Client running(server.port()), waiting(server.port());
  running.send_request("POST", "/v1/completions", kLongAnswer.dump());
  waiting.send_request("POST", "/v1/completions", kLongAnswer.dump());
  while (server.metric("num_requests_running") + server.metric("num_requests_waiting") < 2) std::this_thread::yield();
  const Response r = post(server.port(), "/v1/completions", json{{"prompt", "x"}});
  EXPECT_EQ(r.status, 429);
  EXPECT_GE(std::stoi(r.headers.at("retry-after")), 1);
  EXPECT_EQ(r.json()["error"]["type"], "rate_limit_error");
  EXPECT_EQ(post(server.port(), "/v1/completions", json{{"prompt", json::array({"a", "b"})}}).status, 429);
  EXPECT_EQ(post(server.port(), "/v1/completions", json{{"prompt", json::array({"a", "b", "c"})}}).status,
            400);  // ever
  running.close();
  waiting.close();
  EXPECT_TRUE(server.idle());
  EXPECT_EQ(post(server.port(), "/v1/completions", json{{"prompt", json::array({"a", "b"})}, {"max_tokens", 1}}).status,
            200);
}

TEST(Limits, EndsWhatTakesTooLong) {
  RunningServer server;
  json body = kLongAnswer;
  body["timeout"] = 0.05;
  const Response r = post(server.port(), "/v1/completions", body);
  EXPECT_EQ(r.status, 408) << r.body;
  EXPECT_EQ(r.json()["error"]["code"], "timeout");
  body["stream"] = true;
  const std::vector<std::string> events = post(server.port(), "/v1/completions", body).events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_NE(events[events.size() - 2].find("\"timeout\""), std::string::npos);
  EXPECT_TRUE(server.idle());
}

TEST(Limits, AClientsTimeoutDoesNotExceedTheServers) {
  server::ServerOptions options = RunningServer::small();
  options.timeouts.request_seconds = 0.05;
  RunningServer server(options);
  json body = kLongAnswer;
  body["timeout"] = 1000;
  EXPECT_EQ(post(server.port(), "/v1/completions", body).status, 408);
}

TEST(Limits, BeginsTheUrgentFirst) {
  server::ServerOptions options = RunningServer::small();
  options.engine.max_sequences = 1;
  RunningServer server(options);
  Client running(server.port());
  running.send_request("POST", "/v1/completions", kLongAnswer.dump());
  while (server.metric("num_requests_running") < 1) std::this_thread::yield();
  std::vector<int> order;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (const int priority : {9, 5}) {  // none ahead of the one that runs
    threads.emplace_back([&, priority] {
      EXPECT_EQ(post(server.port(), "/v1/completions",
                     json{{"prompt", "x"}, {"max_tokens", 40}, {"ignore_eos", true}, {"priority", priority}})
                    .status,
                200);
      const std::lock_guard lock(mutex);
      order.push_back(priority);
    });
    while (server.metric("num_requests_waiting") < static_cast<double>(threads.size())) std::this_thread::yield();
  }
  running.close();
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(order, (std::vector{5, 9}));
}

// With one place, and that taken for thousands of tokens: the urgent one has its answer, and then the other goes on.
TEST(Limits, HighPriorityRunsFirst) {
  server::ServerOptions options = RunningServer::small();
  options.engine.max_sequences = 1;
  options.prefix_cache = false;
  RunningServer server(options);
  const auto tokens = [](const Response& r) { return r.json()["choices"][0]["token_ids"]; };
  json slow = kLongAnswer;
  slow["max_tokens"] = kSanitized ? 300 : 1000;
  slow["return_token_ids"] = true;
  const json alone = tokens(post(server.port(), "/v1/completions", slow));
  Client running(server.port());
  running.send_request("POST", "/v1/completions", slow.dump());
  while (server.metric("num_requests_running") < 1) std::this_thread::yield();
  const double before = server.metric("request_generation_tokens_count");
  const json urgent = {{"prompt", "x"}, {"max_tokens", 5}, {"ignore_eos", true}, {"priority", -1}};
  EXPECT_EQ(post(server.port(), "/v1/completions", urgent).json()["usage"]["completion_tokens"], 5);
  EXPECT_EQ(server.metric("request_generation_tokens_count"), before + 1) << "the running one ended first";
  EXPECT_EQ(tokens(running.read_response()), alone);
}

TEST(Limits, SizesOfRequests) {
  server::ServerOptions options = RunningServer::small();
  options.limits.max_body_bytes = 10000;
  options.limits.max_header_bytes = 2000;
  options.timeouts.read_seconds = 0.2;
  RunningServer server(options);
  EXPECT_EQ(post(server.port(), "/v1/completions", std::string(10001, 'x')).status, 413);
  EXPECT_EQ(get(server.port(), "/health", {{"X-Long", std::string(3000, 'x')}}).status, 431);
  EXPECT_EQ(post(server.port(), "/v1/completions", std::string(10000, 'x')).status, 400);
  Client chunked(server.port());
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 3; ++i) chunked.send("1000\r\n" + std::string(0x1000, 'x') + "\r\n");
  EXPECT_EQ(chunked.read_response().status, 413);
  Client nonsense(server.port());
  nonsense.send("\x16\x03\x01 this is not HTTP\r\n\r\n");
  EXPECT_EQ(nonsense.read_response().status, 400);
  Client slow(server.port());
  slow.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_TRUE(slow.ended());  // after read_seconds
  Client polite(server.port());
  const std::string body = json{{"prompt", "x"}, {"max_tokens", 1}}.dump();
  polite.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: "
      "100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(polite.read_response().status, 100);
  polite.send(body);
  EXPECT_EQ(polite.read_response().status, 200);
}

TEST(Limits, ARequestOfHttp11NamesItsHostOnce) {
  RunningServer server;
  const auto status = [&](const std::string& head) {
    Client client(server.port());
    client.send(head + "\r\n");
    return client.read_response().status;
  };
  EXPECT_EQ(status("GET /health HTTP/1.1\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost: localhost\r\n"), 200);
  EXPECT_EQ(status("GET /health HTTP/1.0\r\n"), 200);
}

// Whoever asks for the health of a server that stops is told so, on new connections too; what runs is answered.
TEST(Limits, HealthIs503WhileTheServerStops) {
  RunningServer server;
  Client running(server.port());
  json body = kLongAnswer;
  body["max_tokens"] = 800;
  running.send_request("POST", "/v1/completions", body.dump());
  while (server.metric("num_requests_running") < 1) std::this_thread::yield();
  EXPECT_EQ(get(server.port(), "/health").status, 200);
  server.request_stop();
  Response health = get(server.port(), "/health");
  while (health.status == 200) health = get(server.port(), "/health");  // until the order has arrived
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.headers["connection"], "close");
  EXPECT_EQ(post(server.port(), "/v1/completions", json{{"prompt", "x"}}).status, 503);
  EXPECT_EQ(get(server.port(), "/metrics").status, 200);
  EXPECT_EQ(running.read_response().json()["usage"]["completion_tokens"], 800);
  server.stop();
}

TEST(Limits, NumberOfConnections) {
  server::ServerOptions options = RunningServer::small();
  options.limits.max_connections = 3;
  RunningServer server(options);
  std::vector<Client> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(server.port());
    EXPECT_EQ(clients.back().request("GET", "/health").status, 200);
  }
  EXPECT_EQ(Client(server.port()).request("GET", "/health").status, 503);
  clients.pop_back();
  for (int tries = 0; get(server.port(), "/health").status != 200; ++tries) ASSERT_LT(tries, 1000);
}

TEST(Limits, AnOpenServerWithoutAKeyWarns) {
  const auto said = [](std::vector<std::string> more) {
    std::vector<std::string> command = {MNEME_BINARY, "serve",     "-m", MNEME_MODEL_FILE, "--port", "0", "-c",
                                        "256",        "--threads", "1",  "--quiet"};
    command.insert(command.end(), more.begin(), more.end());
    cli_test::Running server(command);
    EXPECT_TRUE(server.wait_for_output(10));
    ::kill(server.pid(), SIGTERM);
    const cli_test::Outcome outcome = server.wait();
    EXPECT_EQ(outcome.code, 0);
    return outcome.err;
  };
  EXPECT_NE(said({"--host", "0.0.0.0"}).find("warning: 0.0.0.0 can be reached from other machines"), std::string::npos);
  EXPECT_EQ(said({"--host", "0.0.0.0", "--api-key", "secret"}).find("warning"), std::string::npos);
  EXPECT_EQ(said({}).find("warning"), std::string::npos);
}

TEST(Limits, WhatCannotBeServedIsSaidAtTheStart) {
  server::ServerOptions options = RunningServer::small();
  options.listen.host = "203.0.113.1";  // of nobody
  EXPECT_THROW(RunningServer{options}, Error);
  RunningServer first;
  options = RunningServer::small();
  options.listen.port = first.port();
  EXPECT_THROW(RunningServer{options}, Error);
  options = RunningServer::small();
  options.model = "nowhere.gguf";
  EXPECT_THROW(RunningServer{options}, Error);
  options = RunningServer::small();
  options.engine.kv.method = "nothing";
  EXPECT_THROW(RunningServer{options}, Error);
}

}  // namespace
}  // namespace mneme::server_test

// A device that fails, and one that cannot run all methods at the same time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "src/server/metrics.h"
#include "tests/progress.h"
#include "tests/server/http_client.h"
#include "tests/server/running_server.h"
#include "tests/server/test_pass.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const json kLong = {{"prompt", "Once upon a time"}, {"max_tokens", 4000}, {"temperature", 0}, {"ignore_eos", true}};

json with(json body, const json& more) {
  body.update(more);
  return body;
}

TEST(Device, ThatFailsAnswersEverybodyAndEndsTheServer) {
  PassLog log;
  server::ServerOptions options = RunningServer::small();
  options.engine.max_sequences = 2;
  options.engine.kv_memory_bytes = 256 << 20;  // for both
  std::mutex mutex;
  std::string lines;
  options.log = [&](std::string_view line) {
    const std::lock_guard lock(mutex);
    lines += std::string(line) + "\n";
  };
  RunningServer server(options, [&] { return start_test_pass(options, log); });
  // Two that run, streamed and whole, and two that wait.
  std::vector<Client> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back(server.port());
    clients.back().send_request("POST", "/v1/completions", with(kLong, {{"stream", i % 2 == 0}}).dump());
    const double all = i + 1;
    while (server.metric("num_requests_running") + server.metric("num_requests_waiting") < all)
      std::this_thread::yield();
  }
  ASSERT_TRUE(clients[0].read_until("\"text\""));
  EXPECT_EQ(server.metric("num_requests_waiting"), 2);
  log.fails = true;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const Response r = clients[i].read_response();
    if (i == 0) continue;  // its beginning is read: below
    if (i == 2) {
      EXPECT_THAT(r.body, HasSubstr(kDeviceWords)) << "a stream that has not begun";
    } else {
      EXPECT_EQ(r.status, 500);
      EXPECT_EQ(r.error_message(), kDeviceWords);
    }
  }
  EXPECT_EQ(server.wait(), kDeviceWords);
  EXPECT_EQ(log.steps_after, 0) << "a device that failed was asked again";
  EXPECT_GT(log.steps, 0);
  EXPECT_THAT(lines, HasSubstr(std::string("the device failed: ") + kDeviceWords));
  EXPECT_THAT(lines, HasSubstr("stopping"));
}

TEST(Device, ThatFailsEndsAStreamWithTheError) {
  PassLog log;
  const server::ServerOptions options = RunningServer::small();
  RunningServer server(options, [&] { return start_test_pass(options, log); });
  std::thread breaks([&] {
    while (log.steps < 20) std::this_thread::yield();
    log.fails = true;
  });
  const std::vector<std::string> events =
      post(server.port(), "/v1/completions", with(kLong, {{"stream", true}})).events();
  breaks.join();
  ASSERT_GE(events.size(), 2u);
  EXPECT_THAT(events.front(), HasSubstr("\"text\""));
  EXPECT_THAT(events[events.size() - 2], HasSubstr(kDeviceWords));
  EXPECT_EQ(server.wait(), kDeviceWords);
}

// What comes between the failure and the server's end is answered with it, too.
TEST(Device, ThatFailedAnswersWhatComesLater) {
  struct Sink final : GenerationSink {
    void on_event(GenerationEvent event) override {
      const std::lock_guard lock(mutex);
      if (event.failure) failures.push_back(*event.failure);
    }
    std::mutex mutex;
    std::vector<Failure> failures;
  };
  PassLog log;
  const server::ServerOptions options = RunningServer::small();
  server::Metrics metrics("test");
  std::atomic<int> told = 0;
  EngineLoop loop([&] { return start_test_pass(options, log); },
                  {.max_in_flight = 10,
                   .stream_seconds = 0,
                   .keeper = {.prefix_cache = true, .n_slots = 2},
                   .on_broken = [&](const Failure& why) { told += why.message == kDeviceWords; }},
                  metrics,
                  [](std::vector<Delivery> news) {
                    for (Delivery& d : news) d.sink->on_event(std::move(d.event));
                  });
  const auto sink = std::make_shared<Sink>();
  log.fails = true;
  for (std::size_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(loop.submit({.prompt = {5, 6, 7}, .n = 2, .max_tokens = 4}, sink).has_value());
    ASSERT_TRUE(wait_until([&] {
      const std::scoped_lock lock(sink->mutex);
      return sink->failures.size() == i;
    }));
    const std::scoped_lock lock(sink->mutex);
    EXPECT_EQ(sink->failures.back().message, kDeviceWords);
    EXPECT_EQ(sink->failures.back().error, ErrorKind::kDevice);
  }
  while (loop.in_flight() > 0) std::this_thread::yield();
  EXPECT_EQ(log.steps_after, 0);
  while (told == 0) std::this_thread::yield();
  EXPECT_EQ(told, 1);
}

TEST(Device, RefusesAMethodThatItDoesNotRun) {
  PassLog log;
  const server::ServerOptions options = RunningServer::small();
  RunningServer server(options, [&] { return start_test_pass(options, log); });
  const auto quest = [](const char* dense, int max_tokens) {
    return with(kLong,
                {{"max_tokens", max_tokens}, {"kv", {{"method", "quest"}, {"budget", 256}, {"dense_layers", dense}}}});
  };
  Client running(server.port());
  running.send_request("POST", "/v1/completions", quest("0", 4000).dump());
  while (server.metric("num_requests_running") < 1) std::this_thread::yield();
  const int before = log.steps;
  const Response refused = post(server.port(), "/v1/completions", quest("0,1", 3));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.error_message(), HasSubstr("no dense layer 1 on this device"));
  const Response stream = post(server.port(), "/v1/completions", with(quest("1", 3), {{"stream", true}}));
  EXPECT_EQ(stream.status, 400) << "before anything of it is sent";
  // Another method, and no method at all, run beside it; and it was not disturbed.
  EXPECT_EQ(post(server.port(), "/v1/completions", quest("none", 3)).status, 200);
  EXPECT_EQ(post(server.port(), "/v1/completions", with(kLong, {{"max_tokens", 3}})).status, 200);
  EXPECT_EQ(server.metric("num_requests_running"), 1);
  EXPECT_GT(log.steps, before);
  running.close();
  EXPECT_TRUE(server.idle());
}

}  // namespace
}  // namespace mneme::server_test

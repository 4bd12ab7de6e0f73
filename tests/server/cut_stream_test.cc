// A stream of events that cannot go on says so: clients take a connection that just ends for the end of the answer.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/server/http_server.h"
#include "tests/progress.h"
#include "tests/server/http_client.h"

namespace mneme::server {
namespace {

using server_test::Client;
using server_test::Response;

// Begins a stream of events for every request, and keeps its writers.
class Streams {
 public:
  explicit Streams(std::size_t max_unsent_bytes = 8 << 20)
      : options_(options(max_unsent_bytes)),
        metrics_("streams"),
        http_(options_, metrics_),
        thread_([this] { run(); }) {}
  ~Streams() {
    on_io([this] { http_.stop(); });
    thread_.join();
  }
  std::uint16_t port() const { return http_.port(); }
  void on_io(std::function<void()> task) { http_.executors().io(std::move(task)); }
  HttpServer& http() { return http_; }
  std::vector<std::shared_ptr<ResponseWriter>>& writers() { return writers_; }  // on the I/O thread
  bool closed() const { return closed_; }

 private:
  static ServerOptions options(std::size_t max_unsent_bytes) {
    ServerOptions o;
    o.listen.port = 0;
    o.limits.max_unsent_bytes = max_unsent_bytes;
    return o;
  }
  void run() {
    http_.run([this](const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
      writer->on_close([this] { closed_ = true; });
      if (request.path == "/stream") {
        writer->begin_stream({.content_type = "text/event-stream", .headers = {}, .body = {}}, {});
        writer->write("data: first\n\n");
      }
      writers_.push_back(std::move(writer));
    });
  }

  ServerOptions options_;
  Metrics metrics_;
  HttpServer http_;
  std::vector<std::shared_ptr<ResponseWriter>> writers_;
  std::atomic<bool> closed_ = false;
  std::thread thread_;
};

// The last events of a stream that was cut: an error with these words, and the end.
void expect_error_at_the_end(const Response& r, const std::string& words) {
  const std::vector<std::string> events = r.events();
  ASSERT_GE(events.size(), 3u) << r.body.substr(0, 300);
  EXPECT_EQ(events.front(), "first");
  EXPECT_EQ(events.back(), "[DONE]");
  const nlohmann::json error = nlohmann::json::parse(events[events.size() - 2])["error"];
  EXPECT_NE(error["message"].get<std::string>().find(words), std::string::npos) << error;
  EXPECT_EQ(r.body.find("HTTP/1.1"), std::string::npos) << "a second head within the body";
}

TEST(CutStream, AWriterThatGoesAwayInMidStreamEndsItByAnError) {
  Streams streams;
  Client client(streams.port());
  client.send_request("GET", "/stream");
  ASSERT_TRUE(client.read_until("first"));
  streams.on_io([&] { streams.writers().clear(); });
  expect_error_at_the_end(client.read_response(), "not answered to its end");
  // The connection is good for another request.
  client.send_request("GET", "/whole");
  streams.on_io([] {});
  std::atomic<bool> taken = false;
  wait_until([&] {
    streams.on_io([&] { taken = !streams.writers().empty(); });
    return taken.load();
  });
  streams.on_io([&] { streams.writers().clear(); });
  EXPECT_EQ(client.read_response().status, 500);
}

TEST(CutStream, AStopInMidStreamEndsItByAnError) {
  Streams streams;
  Client stream(streams.port()), whole(streams.port());
  stream.send_request("GET", "/stream");
  ASSERT_TRUE(stream.read_until("first"));
  whole.send_request("GET", "/whole");
  std::atomic<std::size_t> open = 0;
  wait_until([&] {
    streams.on_io([&] { open = streams.writers().size(); });
    return open.load() == 2;
  });
  streams.on_io([&] { streams.http().abandon_exchanges("the server stopped"); });
  expect_error_at_the_end(stream.read_response(), "the server stopped");
  EXPECT_EQ(whole.read_response().status, 503);
}

TEST(CutStream, AnAnswerThatItsClientLeftUnreadEndsByAnError) {
  Streams streams(1 << 20);
  Client client(streams.port());
  client.send_request("GET", "/stream");
  ASSERT_TRUE(client.read_until("first"));
  std::function<void()> flood = [&] {
    if (streams.closed()) return;
    streams.writers().front()->write("data: " + std::string(256 << 10, 'x') + "\n\n");
    streams.http().after(0.001, flood);
  };
  streams.on_io(flood);
  wait_until([&] { return streams.closed(); });
  ASSERT_TRUE(streams.closed());
  expect_error_at_the_end(client.read_response(), "unread");
}

}  // namespace
}  // namespace mneme::server

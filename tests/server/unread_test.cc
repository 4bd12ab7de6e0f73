// An answer that its client does not read is not kept without limit.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "src/server/http_server.h"
#include "tests/progress.h"
#include "tests/server/http_client.h"

namespace mneme::server {
namespace {

using server_test::Client;

// Answers every request with 64 MiB in pieces of 256 KiB, other work of the I/O thread between two.
class Flood {
 public:
  static constexpr int kPieces = 256;
  static constexpr std::size_t kPieceBytes = 256 << 10;

  // `pause`: seconds between two pieces.
  explicit Flood(double pause)
      : pause_(pause), metrics_("flood"), http_(options(), metrics_), thread_([this] { run(); }) {}
  ~Flood() {
    http_.executors().io([this] { http_.stop(); });
    thread_.join();
  }
  std::uint16_t port() const { return http_.port(); }
  int written() const { return written_; }
  bool closed() const { return closed_; }

 private:
  static const ServerOptions& options() {
    static const ServerOptions o = [] {
      ServerOptions all;
      all.listen.port = 0;
      all.limits.max_unsent_bytes = 4 << 20;
      return all;
    }();
    return o;
  }
  void run() {
    http_.run([this](const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
      writer->on_close([this] { closed_ = true; });
      writer->begin_stream({.content_type = "text/plain", .headers = {}, .body = {}}, {});
      write(writer);
    });
  }
  void write(const std::shared_ptr<ResponseWriter>& writer) {
    if (closed_) return;
    if (written_ == kPieces) return writer->end();
    ++written_;
    writer->write(std::string(kPieceBytes, 'x'));
    http_.after(pause_, [this, writer] { write(writer); });
  }

  double pause_;
  Metrics metrics_;
  HttpServer http_;
  std::atomic<int> written_ = 0;
  std::atomic<bool> closed_ = false;
  std::thread thread_;
};

TEST(Unread, AClientThatDoesNotReadIsClosedOnAtMaxUnsentBytes) {
  Flood flood(0.001);
  Client client(flood.port());
  client.send_request("GET", "/");
  wait_until([&] { return flood.closed() || flood.written() >= Flood::kPieces; }, std::chrono::milliseconds(1));
  EXPECT_TRUE(flood.closed());
  // The system's own buffers of both sockets take some MiB more.
  EXPECT_LT(flood.written() * Flood::kPieceBytes, std::size_t{48} << 20);
}

TEST(Unread, AClientThatReadsGetsEverything) {
  Flood flood(0.008);  // 32 MB/s: a client that reads keeps up
  Client client(flood.port());
  client.send_request("GET", "/");
  EXPECT_EQ(client.read_response().body.size(), Flood::kPieces * Flood::kPieceBytes);
  EXPECT_FALSE(flood.closed());
}

}  // namespace
}  // namespace mneme::server

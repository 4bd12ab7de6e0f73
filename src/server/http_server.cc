#include "src/server/http_server.h"

#include <boost/asio.hpp>
#include <chrono>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/server/api/api_error.h"
#include "src/server/socket/connection.h"

namespace mneme::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kWorkThreads = 2;

}  // namespace

struct HttpServer::Impl : ConnectionHost {
  Impl(const ServerOptions& o, Metrics& m) : ConnectionHost(o, m), acceptor(io), signals(io) {}

  asio::thread_pool workers{kWorkThreads}, files{1};
  tcp::acceptor acceptor;
  asio::signal_set signals;
  std::function<void(int)> on_signal;

  void accept();
  void wait_for_signal();
};

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (!acceptor.is_open()) return;
    if (!error) {
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      if (connections < options.limits.max_connections) {
        std::make_shared<Connection>(std::move(socket), *this)->read();
      } else {
        static const std::string kFull =
            "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
        socket.write_some(asio::buffer(kFull), ignored);
        metrics.count_request("", 503);
      }
    } else if (error == asio::error::no_descriptors) {
      // Open connections continue; new ones are accepted when some have closed.
      auto timer = std::make_shared<asio::steady_timer>(io, std::chrono::milliseconds(100));
      timer->async_wait([this, timer](error_code) { accept(); });
      return;
    }
    accept();
  });
}

void HttpServer::Impl::wait_for_signal() {
  signals.async_wait([this](error_code error, int signal) {
    if (error) return;
    if (on_signal) on_signal(signal);
    wait_for_signal();
  });
}

HttpServer::HttpServer(const ServerOptions& options, Metrics& metrics)
    : impl_(std::make_unique<Impl>(options, metrics)) {
  error_code error;
  tcp::resolver resolver(impl_->io);
  const auto addresses = resolver.resolve(options.listen.host, std::to_string(options.listen.port),
                                          tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || addresses.empty()) fail(ErrorKind::kOption, "--host {}: {}", options.listen.host, error.message());
  const tcp::endpoint endpoint = addresses.begin()->endpoint();
  tcp::acceptor& acceptor = impl_->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    fail(ErrorKind::kOption, "cannot listen on {} port {}: {}", options.listen.host, options.listen.port,
         error.message());
}

HttpServer::~HttpServer() {
  end_work();
  impl_->alive.reset();
}

void HttpServer::end_work() {
  for (asio::thread_pool* pool : {&impl_->workers, &impl_->files}) {
    pool->stop();
    pool->join();
  }
}

std::uint16_t HttpServer::port() const {
  return impl_->acceptor.local_endpoint().port();
}

Executors HttpServer::executors() {
  return {.io = [this](std::function<void()> f) { asio::post(impl_->io, std::move(f)); },
          .work = [this](std::function<void()> f) { asio::post(impl_->workers, std::move(f)); },
          .files = [this](std::function<void()> f) { asio::post(impl_->files, std::move(f)); }};
}

void HttpServer::run(RequestHandler handler) {
  impl_->handler = std::move(handler);
  impl_->accept();
  const auto work = asio::make_work_guard(impl_->io);
  impl_->io.run();
}

void HttpServer::drain() {
  impl_->stopping = true;
}

std::int64_t HttpServer::exchanges() const {
  return impl_->exchanges;
}

void HttpServer::abandon_exchanges(const std::string& why) {
  const std::vector<Connection*> open(impl_->open.begin(), impl_->open.end());
  for (Connection* c : open)
    if (impl_->open.contains(c)) c->abandon(ApiError(503, why));
}

void HttpServer::after(double seconds, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(
      impl_->io, std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(seconds)));
  timer->async_wait([timer, task = std::move(task)](error_code error) {
    if (!error) task();
  });
}

void HttpServer::on_signal(std::function<void(int)> task) {
  impl_->on_signal = std::move(task);
  impl_->signals.add(SIGTERM);
  impl_->signals.add(SIGINT);
  impl_->wait_for_signal();
}

void HttpServer::stop() {
  impl_->io.stop();
}

}  // namespace mneme::server

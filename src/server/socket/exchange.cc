#include "src/server/socket/exchange.h"

namespace mneme::server {

Exchange::~Exchange() {
  const auto alive = alive_.lock();
  if (complete_ || !alive) return;
  // Wherever the last holder let go of it: the connection is the I/O thread's.
  boost::asio::post(io_, [weak = connection_, number = number_] {
    if (const auto c = weak.lock()) c->abandon(number, ApiError(500, "the request was not answered to its end"));
  });
}
void Exchange::respond(HttpResponse response) {
  complete_ = true;
  if (const auto c = connection_.lock()) c->respond(number_, std::move(response));
}
void Exchange::begin_stream(HttpResponse head, StreamWords words) {
  if (const auto c = connection_.lock()) c->begin_stream(number_, head, std::move(words));
}
void Exchange::write(std::string piece) {
  if (const auto c = connection_.lock()) c->write(number_, piece);
}
void Exchange::end() {
  complete_ = true;
  if (const auto c = connection_.lock()) c->end(number_);
}
void Exchange::on_close(std::function<void()> closed) {
  const auto c = connection_.lock();
  c ? c->on_close(number_, std::move(closed)) : closed();
}

}  // namespace mneme::server

#include "src/server/reply/reply.h"

#include <fmt/format.h>

#include <chrono>

#include "src/server/api/api_error.h"

namespace mneme::server {

class Reply::Sink final : public GenerationSink {
 public:
  Sink(std::shared_ptr<Reply> reply, std::size_t prompt) : reply_(std::move(reply)), prompt_(prompt) {}
  void on_event(GenerationEvent event) override { reply_->on_event(prompt_, std::move(event)); }

 private:
  std::shared_ptr<Reply> reply_;
  std::size_t prompt_;
};

Reply::Reply(Setting setting, std::vector<GenerationInput> inputs, std::shared_ptr<ResponseWriter> writer)
    : setting_(std::move(setting)),
      inputs_(std::move(inputs)),
      n_prompts_(inputs_.size()),
      n_(inputs_.front().n),
      writer_(std::move(writer)) {
  created_ =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Reply::start() {
  writer_->on_close([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_close();
  });
  const std::int64_t answers = n_prompts() * n();
  if (setting_.key != nullptr) {
    if (!setting_.key->has_room_for(answers)) {
      return refuse(ApiError(429,
                             fmt::format("the key \"{}\" has as many answers in flight as it may have, {}: try again "
                                         "when one has ended",
                                         setting_.key->policy.name, setting_.key->policy.max_in_flight),
                             {}, "key_limit"));
    }
    setting_.key->in_flight += leased_ = answers;
  }
  for (std::size_t i = 0; i < n_prompts() && !closed_; ++i) {
    const auto id = setting_.loop.submit(std::move(inputs_[i]), std::make_shared<Sink>(shared_from_this(), i));
    if (!id) {
      cancel_all();
      return refuse(ApiError(429, "the server has as many requests as it takes: try again later", {}, "queue_full"));
    }
    generations_.push_back(*id);
  }
  inputs_.clear();
}

void Reply::refuse(const ApiError& error) {
  writer_->respond({.status = 429, .headers = {{"Retry-After", setting_.retry_after()}}, .body = error_body(error)});
  close();
}

void Reply::cancel_all() {
  for (const GenerationId id : generations_) setting_.loop.cancel(id);
}

void Reply::close() {
  closed_ = true;
  writer_.reset();
  if (setting_.key != nullptr) setting_.key->in_flight -= std::exchange(leased_, 0);
}

void Reply::on_close() {
  if (closed_) return;
  cancel_all();
  close();
}

void Reply::fail(const Failure& failure) {
  cancel_all();
  const ApiError error = api_error_of(failure);
  if (streaming_) return end_stream(error_events(error));
  writer_->respond({.status = error.status, .body = error_body(error)});
  close();
}

void Reply::on_event(std::size_t prompt, GenerationEvent event) {
  if (closed_) return;
  if (event.failure) return fail(*event.failure);
  if (event.accepted && prompt == 0) queue_position_ = event.queue_position;
  take(prompt, std::move(event));
}

std::string Reply::error_body(const ApiError& error) const {
  return error.body();
}

std::string Reply::error_events(const ApiError& error) {
  return fmt::format("data: {}\n\ndata: [DONE]\n\n", error.body());
}

HttpResponse Reply::head() const {
  HttpResponse head{.headers = setting_.headers, .body = {}};
  head.headers.emplace_back("X-Queue-Position", std::to_string(queue_position_));
  return head;
}

void Reply::begin_stream(std::function<std::string()> heartbeat) {
  streaming_ = true;
  HttpResponse begin = head();
  begin.content_type = "text/event-stream";
  begin.headers.emplace_back("Cache-Control", "no-cache");
  writer_->begin_stream(
      std::move(begin),
      {.heartbeat = std::move(heartbeat), .failure = [weak = weak_from_this()](const std::string& message, int status) {
         const auto self = weak.lock();
         return self == nullptr ? std::string() : self->error_events(ApiError(status, message));
       }});
}

void Reply::end_stream(std::string events) {
  writer_->write(std::move(events));
  writer_->end();
  close();
}

void Reply::respond(const OrderedJson& json) {
  HttpResponse response = head();
  response.body = json_text(json);
  writer_->respond(std::move(response));
  close();
}

}  // namespace mneme::server

// A request of any API on its way back: its generations in the engine, the lease of its key, its client. What is
// written is the derived class's.
//
// Threads  the I/O thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/loop/engine_loop.h"
#include "src/server/api/completion_json.h"
#include "src/server/api/key_use.h"
#include "src/server/http/http.h"

namespace mneme::server {

class ApiError;

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  struct Setting {
    const TextSide& text;
    EngineLoop& loop;
    std::string model, method, request_id;
    std::shared_ptr<KeyUse> key;                               // null: one without limits
    std::function<std::string()> retry_after;                  // seconds, for 429
    std::string thought_field;                                 // of a chat's messages and deltas
    std::vector<std::pair<std::string, std::string>> headers;  // of the answer, beside what every answer has
  };
  virtual ~Reply() = default;
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  // Hands the prompts to the engine. Nothing is computed when there is no room for all of them.
  void start();

 protected:
  // Requires  at least one input; all of them with the same n.
  Reply(Setting setting, std::vector<GenerationInput> inputs, std::shared_ptr<ResponseWriter> writer);

  // News of a generation, which has not failed, for a client that is still there.
  virtual void take(std::size_t prompt, GenerationEvent event) = 0;
  // An answer that is an error, and the end of a stream that has failed: as OpenAI's API has them.
  virtual std::string error_body(const ApiError& error) const;
  virtual std::string error_events(const ApiError& error);

  const Setting& setting() const { return setting_; }
  const std::vector<GenerationInput>& inputs() const { return inputs_; }  // until start()
  std::size_t n_prompts() const { return n_prompts_; }
  // Answers to each prompt.
  std::size_t n() const { return n_; }
  std::int64_t created() const { return created_; }  // seconds since 1970
  bool streaming() const { return streaming_; }

  void begin_stream(std::function<std::string()> heartbeat);
  void write(std::string events) { writer_->write(std::move(events)); }
  // The last events, or all of the answer; nothing may follow.
  void end_stream(std::string events);
  void respond(const OrderedJson& json);

 private:
  class Sink;
  void on_event(std::size_t prompt, GenerationEvent event);
  void on_close();
  void refuse(const ApiError& error);
  void fail(const Failure& failure);
  void cancel_all();
  void close();
  HttpResponse head() const;

  Setting setting_;
  std::vector<GenerationInput> inputs_;  // until they are handed over
  std::size_t n_prompts_, n_;
  std::shared_ptr<ResponseWriter> writer_;
  std::vector<GenerationId> generations_;
  std::int64_t created_ = 0;
  std::int64_t leased_ = 0;          // of the key's answers in flight
  std::int32_t queue_position_ = 0;  // of the first prompt, when it was accepted
  bool streaming_ = false, closed_ = false;
};

}  // namespace mneme::server

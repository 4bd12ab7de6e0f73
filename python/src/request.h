// One prompt and its answers, as the engine loop tells of them, for readers on other threads and event loops.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/loop/engine_loop.h"

namespace mneme::python {

class Request;

// Requests with news, for one event loop: its file descriptor is readable while there are any. The engine's thread
// writes to the descriptor and never takes the GIL.
class Mailbox {
 public:
  // Errors  kResource: no file descriptor.
  Mailbox();
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int fd() const { return fd_; }
  // The numbers of requests with news since the last call, each once.
  std::vector<std::int64_t> take();
  void put(std::int64_t number);

 private:
  int fd_;
  std::mutex mutex_;
  std::vector<std::int64_t> ready_;
};

// Threads  any.
class Request final : public GenerationSink {
 public:
  Request(std::int32_t n, std::shared_ptr<Mailbox> mailbox, std::int64_t number)
      : pieces_(static_cast<std::size_t>(n)), open_(n), mailbox_(std::move(mailbox)), number_(number) {}

  // The engine's thread.
  void on_event(GenerationEvent event) override;
  // Of a loop that ended under it.
  void fail(Failure failure);

  // Returns when there is news, or the request has ended, or after a slice (src/gil.h). True: not the latter.
  bool wait_slice(bool for_end);
  bool ended();
  // What came of one answer since the last call. Errors  what the request failed with.
  AnswerPiece take(std::int32_t choice);
  PromptSummary prompt();
  std::int64_t number() const { return number_; }

  std::weak_ptr<EngineLoop> loop;
  std::optional<GenerationId> id;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<AnswerPiece> pieces_;
  PromptSummary prompt_;
  std::optional<Failure> failure_;
  std::int32_t open_;
  bool news_ = false;
  std::shared_ptr<Mailbox> mailbox_;
  std::int64_t number_;
};

}  // namespace mneme::python

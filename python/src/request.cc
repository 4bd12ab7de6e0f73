#include "python/src/request.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "python/src/gil.h"
#include "src/base/error.h"

namespace mneme::python {

Mailbox::Mailbox() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) fail(ErrorKind::kResource, "no file descriptor for streams: {}", std::strerror(errno));
}

Mailbox::~Mailbox() {
  ::close(fd_);
}

std::vector<std::int64_t> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  std::uint64_t n = 0;
  static_cast<void>(!::read(fd_, &n, sizeof(n)));
  return std::exchange(ready_, {});
}

void Mailbox::put(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  if (std::find(ready_.begin(), ready_.end(), number) != ready_.end()) return;
  ready_.push_back(number);
  if (ready_.size() > 1) return;
  const std::uint64_t one = 1;
  static_cast<void>(!::write(fd_, &one, sizeof(one)));
}

void Request::on_event(GenerationEvent event) {
  {
    const std::lock_guard lock(mutex_);
    if (event.prompt) prompt_ = std::move(*event.prompt);
    if (event.failure) {
      failure_ = std::move(event.failure);
      open_ = 0;
    } else {
      if (event.piece.end) --open_;
      pieces_[static_cast<std::size_t>(event.choice)].append(std::move(event.piece));
    }
    news_ = true;
  }
  changed_.notify_all();
  if (mailbox_) mailbox_->put(number_);
}

void Request::fail(Failure failure) {
  if (!ended()) on_event({.failure = std::move(failure)});
}

bool Request::wait_slice(bool for_end) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kSignalSlice, [&] { return open_ == 0 || (news_ && !for_end); });
}

bool Request::ended() {
  const std::lock_guard lock(mutex_);
  return open_ == 0;
}

AnswerPiece Request::take(std::int32_t choice) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(failure_->error, failure_->message);
  if (choice < 0 || static_cast<std::size_t>(choice) >= pieces_.size())
    mneme::fail(ErrorKind::kRequest, "there are {} answers, found the number {}", pieces_.size(), choice);
  news_ = false;
  return std::exchange(pieces_[static_cast<std::size_t>(choice)], {});
}

PromptSummary Request::prompt() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(failure_->error, failure_->message);
  return prompt_;
}

}  // namespace mneme::python

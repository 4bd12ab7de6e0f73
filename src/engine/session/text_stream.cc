#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/engine/session/session_impl.h"

namespace mneme {

TextStream::Impl::~Impl() {
  if (pending == nullptr) return;
  session->finish(*pending);
  session->streaming = false;
}

TextStream::TextStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;

std::optional<std::string> TextStream::next() {
  MNEME_CHECK(impl_ != nullptr, "this stream was moved from");
  PendingAnswer& pending = *impl_->pending;
  while (!pending.done()) {
    std::optional<PendingAnswer::News> news = pending.next();
    if (pending.done()) {
      impl_->session->finish(pending);
      impl_->session->streaming = false;
    }
    if (news && !news->piece.text.empty()) return std::move(news->piece.text);
  }
  return std::nullopt;
}

void TextStream::stop() {
  impl_->pending->cancel();
}

bool TextStream::done() const {
  return impl_->pending->done();
}

const Answer& TextStream::answer() const {
  if (!done()) fail(ErrorKind::kRequest, "the answer has not ended: read the stream to its end first");
  return impl_->pending->answer();
}

}  // namespace mneme

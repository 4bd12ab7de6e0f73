#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/engine/session/session_impl.h"

namespace mneme {

TextStream::Impl::~Impl() {
  if (generation == nullptr) return;
  session->finish(*generation);
  session->streaming = false;
}

TextStream::TextStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;

std::optional<std::string> TextStream::next() {
  MNEME_CHECK(impl_ != nullptr, "this stream was moved from");
  Generation& generation = *impl_->generation;
  while (!generation.done()) {
    std::optional<Generation::News> news = generation.next();
    if (generation.done()) {
      impl_->session->finish(generation);
      impl_->session->streaming = false;
    }
    if (news && !news->text.empty()) return std::move(news->text);
  }
  return std::nullopt;
}

void TextStream::stop() {
  impl_->generation->cancel();
}

bool TextStream::done() const {
  return impl_->generation->done();
}

const Answer& TextStream::answer() const {
  if (!done()) fail(ErrorKind::kRequest, "the answer has not ended: read the stream to its end first");
  return impl_->generation->answer();
}

}  // namespace mneme

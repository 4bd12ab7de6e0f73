#include "src/tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "src/base/error.h"

namespace mneme {
namespace {
constexpr std::size_t kAlign = 64;
constexpr std::size_t kHuge = std::size_t{2} << 20;
}  // namespace

void Buffer::Free::operator()(std::byte* p) const {
  std::free(p);
}

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  const std::size_t align = bytes >= 2 * kHuge ? kHuge : kAlign;
  const std::size_t rounded = (bytes + align - 1) / align * align;
  auto* p = rounded < bytes ? nullptr : static_cast<std::byte*>(std::aligned_alloc(align, rounded));
  if (p == nullptr) fail(ErrorKind::kResource, "out of memory: {} MiB could not be allocated", bytes >> 20);
  if (align == kHuge) ::madvise(p, rounded, MADV_HUGEPAGE);  // a hint; refusal costs speed only
  data_.reset(p);
}

void Buffer::reserve(std::size_t bytes) {
  if (bytes > size_) {
    *this = Buffer();  // frees first: old and new memory are never held together
    *this = Buffer(bytes);
  }
}

Tensor::Tensor(DType dtype, std::initializer_list<std::int64_t> shape) : view_(nullptr, dtype, shape) {
  const std::size_t bytes = view_.rank() == 1 ? view_.stride_bytes() : view_.stride_bytes() * view_.dim(0);
  buffer_ = Buffer(bytes);
  view_ = TensorView(buffer_.data(), dtype, shape);
}

}  // namespace mneme

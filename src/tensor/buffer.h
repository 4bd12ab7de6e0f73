// Owned tensor memory: 64-byte aligned, huge pages for large buffers, not initialised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>

#include "src/tensor/view.h"

namespace mneme {

class Buffer {
 public:
  Buffer() = default;
  // Errors  kResource: out of memory.
  explicit Buffer(std::size_t bytes);
  // A moved-from buffer is empty and may be reused.
  Buffer(Buffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

  // Ensures size() >= bytes. Content is lost when the buffer grows.
  void reserve(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

// A buffer and a view of all of it.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::initializer_list<std::int64_t> shape);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: implicit on purpose
  operator ConstTensorView() const { return view_; }    // NOLINT
  template <typename T>
  T* as() const {
    return view_.row_as<T>(0);
  }
  std::size_t bytes() const { return buffer_.size(); }

 private:
  Buffer buffer_;
  TensorView view_;
};

}  // namespace mneme

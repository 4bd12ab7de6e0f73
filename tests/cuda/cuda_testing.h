// Tests that need a GPU: they skip, with the reason, where there is none. And arrays that are here and there.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "src/cuda/device.h"
#include "src/cuda/memory.h"

namespace mneme {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no GPU: " << no_device_reason();
    use_device(0);
    stream = Stream::make();
  }
  Stream stream;
};

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n, int poison = 0xff) : size_(n), buffer_(n * sizeof(T) + 1, "a test's array") {
    const Stream stream = Stream::make();
    set_bytes(buffer_.data(), poison, n * sizeof(T), stream);
    stream.synchronize();
  }
  explicit DeviceArray(std::span<const T> from) : DeviceArray(from.size()) { put(from); }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(std::span<const T>(from)) {}

  void put(std::span<const T> from) {
    const Stream stream = Stream::make();
    copy_bytes(buffer_.data(), from.data(), from.size_bytes(), stream);
    stream.synchronize();
  }
  // After everything that `stream` has been given.
  std::vector<T> get(const Stream& stream) const {
    std::vector<T> out(size_);
    copy_bytes(out.data(), buffer_.data(), size_ * sizeof(T), stream);
    stream.synchronize();
    return out;
  }
  T* data() const { return buffer_.as<T>(); }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  DeviceBuffer buffer_;
};

}  // namespace mneme

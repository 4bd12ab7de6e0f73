// Device memory for the attention mass that decode steps give, a row for each sequence that is observed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/memory.h"
#include "src/kv/page_pool.h"

namespace mneme {

class CudaDecodeMass {
 public:
  explicit CudaDecodeMass(const KvShape& shape) : n_heads_(shape.blocks_per_page()) {}

  // Rows for n_rows sequences, of which a head's table has `slots` entries at most; `received`: sums over steps too.
  // What is stored stays. True: the memory has moved. Synchronises then.   Errors  kResource.
  bool prepare(std::int32_t n_rows, std::int32_t slots, bool received, const Stream& stream);

  // [rows][layers * KV heads][stride]
  float* given() const { return given_.as<float>(); }
  float* received() const { return received_.as<float>(); }
  std::int64_t stride() const { return stride_; }
  std::int32_t n_rows() const { return n_rows_; }
  std::int64_t row_floats() const { return n_heads_ * stride_; }
  std::size_t bytes() const { return given_.size() + received_.size(); }

 private:
  void move(DeviceBuffer& buffer, std::int32_t n_rows, std::int64_t stride, const Stream& stream) const;

  std::int64_t n_heads_;  // of all layers
  std::int64_t stride_ = 0;
  std::int32_t n_rows_ = 0;
  DeviceBuffer given_, received_;
};

}  // namespace mneme

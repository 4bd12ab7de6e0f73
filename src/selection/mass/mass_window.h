// Attention mass that the tokens of a layer's window have received so far, by query head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/formats/bytes/byte_reader.h"
#include "src/formats/bytes/byte_writer.h"

namespace mneme {

class MassWindow {
 public:
  MassWindow() = default;
  explicit MassWindow(std::int32_t n_heads) : n_heads_(n_heads) {}

  std::int32_t begin() const { return begin_; }
  std::int32_t end() const { return end_; }
  // Appends positions [end(), to) with mass 0.
  void extend(std::int32_t to);
  // Appends positions [end(), to) and removes all below `to`: their mass is unknown.
  void skip(std::int32_t to) {
    if (to >= end_) begin_ = end_ = to;
  }
  // Removes positions below `from`.
  void forget(std::int32_t from);
  // Mass of query head h from position `at` on; rows of adjacent heads are stride() floats apart.
  // Requires  begin() <= at <= end().
  float* row(std::int32_t h, std::int32_t at) { return values_.data() + h * stride_ + (at - begin_); }
  const float* row(std::int32_t h, std::int32_t at) const { return values_.data() + h * stride_ + (at - begin_); }
  std::int64_t stride() const { return stride_; }
  // For saved sessions. Requires  (read) begin <= end; nothing was added yet. Errors  kFormat: unexpected end of data.
  void write(ByteWriter& out) const;
  void read(ByteReader& in, std::int32_t begin, std::int32_t end);
  std::size_t bytes() const { return values_.capacity() * sizeof(float); }

 private:
  std::int32_t n_heads_ = 0, begin_ = 0, end_ = 0;
  std::int64_t stride_ = 0;
  std::vector<float> values_;  // [n_heads][stride]
};

}  // namespace mneme

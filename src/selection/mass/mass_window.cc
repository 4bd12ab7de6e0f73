#include "src/selection/mass/mass_window.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"

namespace mneme {

void MassWindow::extend(std::int32_t to) {
  if (to <= end_) return;
  const std::int64_t have = end_ - begin_, wanted = to - begin_;
  if (wanted > stride_) {
    const std::int64_t stride = std::max(wanted, stride_ + stride_ / 2);
    std::vector<float> values(n_heads_ * stride);
    for (std::int32_t h = 0; h < n_heads_; ++h) std::copy_n(row(h, begin_), have, values.data() + h * stride);
    values_ = std::move(values);
    stride_ = stride;
  }
  for (std::int32_t h = 0; h < n_heads_; ++h) std::fill(row(h, end_), row(h, to), 0.0f);
  end_ = to;
}

void MassWindow::forget(std::int32_t from) {
  from = std::min(from, end_);
  if (from <= begin_) return;
  for (std::int32_t h = 0; h < n_heads_; ++h) std::copy(row(h, from), row(h, end_), row(h, begin_));
  begin_ = from;
}

void MassWindow::write(ByteWriter& out) const {
  for (std::int32_t h = 0; h < n_heads_; ++h) out.put(std::as_bytes(std::span(row(h, begin_), row(h, end_))));
}

void MassWindow::read(ByteReader& in, std::int32_t begin, std::int32_t end) {
  const std::size_t n = end - begin;
  // Check that the bytes exist before memory is allocated for them.
  const auto values = in.take(n_heads_ * n * sizeof(float), "attention received");
  begin_ = end_ = begin;
  extend(end);
  for (std::int32_t h = 0; h < n_heads_ && n > 0; ++h)
    std::memcpy(row(h, begin), values.data() + h * n * sizeof(float), n * sizeof(float));
}

}  // namespace mneme

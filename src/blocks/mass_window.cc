#include "src/blocks/mass_window.h"

#include <algorithm>

#include "src/base/check.h"

namespace mneme {

void MassWindow::extend(std::int32_t to) {
  if (to <= end_) return;
  const std::int64_t have = end_ - begin_, wanted = to - begin_;
  if (wanted > stride_) {
    const std::int64_t stride = std::max(wanted, stride_ + stride_ / 2);
    std::vector<float> values(static_cast<std::size_t>(n_heads_ * stride));
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

}  // namespace mneme

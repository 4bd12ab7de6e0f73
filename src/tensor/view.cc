#include "src/tensor/view.h"

#include <fmt/ranges.h>

#include <span>

#include "src/base/check.h"
#include "src/base/size32.h"

namespace mneme {

template <typename Byte>
BasicTensorView<Byte>::BasicTensorView(Byte* data, DType dtype, std::initializer_list<std::int64_t> shape)
    : data_(data), dtype_(dtype), rank_(size32(shape)) {
  MNEME_CHECK(rank_ >= 1 && rank_ <= kMaxRank, "a view has 1 to {} dimensions, not {}", kMaxRank, rank_);
  int i = 0;
  for (std::int64_t d : shape) {
    MNEME_CHECK(d >= 0, "dimension {} of a view is {}", i, d);
    dims_[i++] = d;
  }
  stride_bytes_ = row_bytes(dtype, rank_ == 1 ? dims_[0] : row_elements());
}

template <typename Byte>
BasicTensorView<Byte>::operator BasicTensorView<const std::byte>() const {
  BasicTensorView<const std::byte> v;
  v.data_ = data_;
  v.dtype_ = dtype_;
  v.rank_ = rank_;
  v.dims_ = dims_;
  v.stride_bytes_ = stride_bytes_;
  return v;
}

template <typename Byte>
std::int64_t BasicTensorView<Byte>::dim(int i) const {
  MNEME_CHECK(i >= 0 && i < rank_, "dimension {} of a view with {}", i, rank_);
  return dims_[i];
}

template <typename Byte>
std::int64_t BasicTensorView<Byte>::n_elements() const {
  return rank_ == 0 ? 0 : (rank_ == 1 ? dims_[0] : dims_[0] * row_elements());
}

template <typename Byte>
std::int64_t BasicTensorView<Byte>::row_elements() const {
  std::int64_t n = 1;
  for (int i = 1; i < rank_; ++i) n *= dims_[i];
  return rank_ == 1 ? 1 : n;
}

template <typename Byte>
BasicTensorView<Byte> BasicTensorView<Byte>::rows(std::int64_t begin, std::int64_t end) const {
  MNEME_CHECK(rank_ >= 2 && begin >= 0 && begin <= end && end <= dims_[0], "rows {} to {} of {}", begin, end,
              to_string());
  BasicTensorView v = *this;
  v.data_ = row(begin);
  v.dims_[0] = end - begin;
  return v;
}

template <typename Byte>
BasicTensorView<Byte> BasicTensorView<Byte>::with_stride(std::size_t stride_bytes) const {
  BasicTensorView v = *this;
  v.stride_bytes_ = stride_bytes;
  return v;
}

template <typename Byte>
std::string BasicTensorView<Byte>::to_string() const {
  return fmt::format("{} [{}]", dtype_name(dtype_), fmt::join(std::span(dims_).first(rank_), ", "));
}

template <typename Byte>
void BasicTensorView<Byte>::check_type(DType asked) const {
  MNEME_CHECK(asked == dtype_, "{} read as {}", to_string(), dtype_name(asked));
}

void expect_shape(std::string_view what, const ConstTensorView& view, DType dtype,
                  std::initializer_list<std::int64_t> shape) {
  bool fits = view.dtype() == dtype && view.rank() == size32(shape);
  int i = 0;
  for (std::int64_t d : shape) {
    if (!fits) break;
    fits = d == kAnySize || d == view.dim(i);
    ++i;
  }
  MNEME_CHECK(fits, "{}: expected {} [{}], found {}", what, dtype_name(dtype), fmt::join(shape, ", "),
              view.to_string());
}

template class BasicTensorView<std::byte>;
template class BasicTensorView<const std::byte>;

}  // namespace mneme

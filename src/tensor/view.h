// Non-owning view of rows of elements: at most four dimensions, outer to inner, the innermost contiguous.
//
//   TensorView q = view_of(pointer, {n_rows, n_heads, head_dim});
//   expect_shape("q", q, DType::kF32, {kAnySize, 8, 64});      // one line at the top of a kernel; our bug if it fails
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "src/tensor/dtype.h"

namespace mneme {

inline constexpr std::int64_t kAnySize = -1;

template <typename Byte>  // std::byte or const std::byte
class BasicTensorView {
 public:
  static constexpr int kMaxRank = 4;

  BasicTensorView() = default;
  // A dense view: rows are contiguous.
  BasicTensorView(Byte* data, DType dtype, std::initializer_list<std::int64_t> shape);
  // The mutable view is usable as the const one.
  operator BasicTensorView<const std::byte>() const;  // NOLINT: implicit on purpose

  Byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  std::int64_t dim(int i) const;
  std::int64_t n_elements() const;
  // Bytes between consecutive rows of dimension 0 (rank >= 1); for rank 1, the bytes of the whole row.
  std::size_t stride_bytes() const { return stride_bytes_; }
  // Product of all dimensions but the first.
  std::int64_t row_elements() const;

  Byte* row(std::int64_t i) const { return data_ + i * stride_bytes_; }
  // Row i as T. Requires  T is the view's dtype (checked).
  template <typename T>
  auto* row_as(std::int64_t i) const;

  // Rows [begin, end) of dimension 0.
  BasicTensorView rows(std::int64_t begin, std::int64_t end) const;
  // The same rows with another stride.
  BasicTensorView with_stride(std::size_t stride_bytes) const;
  std::string to_string() const;  // "bf16 [512, 8, 64]"

 private:
  template <typename>
  friend class BasicTensorView;
  void check_type(DType asked) const;

  Byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  std::array<std::int64_t, kMaxRank> dims_{};
  std::size_t stride_bytes_ = 0;
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

template <typename Byte>
template <typename T>
auto* BasicTensorView<Byte>::row_as(std::int64_t i) const {
  check_type(dtype_of<T>::value);
  using Out = std::conditional_t<std::is_const_v<Byte>, const T, T>;
  return reinterpret_cast<Out*>(row(i));
}

template <typename T>
TensorView view_of(T* data, std::initializer_list<std::int64_t> shape) {
  return TensorView(reinterpret_cast<std::byte*>(data), dtype_of<T>::value, shape);
}
template <typename T>
ConstTensorView view_of(const T* data, std::initializer_list<std::int64_t> shape) {
  return ConstTensorView(reinterpret_cast<const std::byte*>(data), dtype_of<T>::value, shape);
}

// Aborts with both shapes in the message unless dtype and shape match; kAnySize matches any size.
void expect_shape(std::string_view what, const ConstTensorView& view, DType dtype,
                  std::initializer_list<std::int64_t> shape);

extern template class BasicTensorView<std::byte>;
extern template class BasicTensorView<const std::byte>;

}  // namespace mneme

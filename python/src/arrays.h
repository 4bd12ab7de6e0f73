// Vectors to NumPy arrays that own them: nothing is copied.
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace mneme::python {

namespace nb = nanobind;

using Floats1 = nb::ndarray<nb::numpy, const float, nb::ndim<1>>;
using Floats2 = nb::ndarray<nb::numpy, const float, nb::ndim<2>>;
using Counts1 = nb::ndarray<nb::numpy, const std::int64_t, nb::ndim<1>>;

template <typename T>
nb::capsule keep(std::vector<T> values, const T*& data) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  data = owner->data();
  return nb::capsule(owner.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
}

inline Floats1 floats(std::vector<float> values) {
  const std::size_t n = values.size();
  const float* data = nullptr;
  const nb::capsule owner = keep(std::move(values), data);
  return Floats1(data, {n}, owner);
}

// f32 [rows, columns], row-major.
inline Floats2 floats(std::vector<float> values, std::size_t columns) {
  const std::size_t rows = columns == 0 ? 0 : values.size() / columns;
  const float* data = nullptr;
  const nb::capsule owner = keep(std::move(values), data);
  return Floats2(data, {rows, columns}, owner);
}

inline Counts1 counts(std::vector<std::int64_t> values) {
  const std::size_t n = values.size();
  const std::int64_t* data = nullptr;
  const nb::capsule owner = keep(std::move(values), data);
  return Counts1(data, {n}, owner);
}

}  // namespace mneme::python

// Head sizes that device attention is compiled for (CMake: MNEME_HEAD_DIMS).
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "src/ops/attention/built_head_dims.h"

namespace mneme {

template <int... kDims>
using HeadDims = std::integer_sequence<int, kDims...>;
using BuiltHeadDims = HeadDims<MNEME_HEAD_DIMS>;

// Calls f(std::integral_constant<int, dim>()); does nothing where `dim` is not compiled.
template <typename F, int... kDims>
void with_head_dim(std::int32_t dim, F&& f, HeadDims<kDims...>) {
  static_cast<void>(((dim == kDims ? (f(std::integral_constant<int, kDims>()), true) : false) || ...));
}
template <typename F>
void with_head_dim(std::int32_t dim, F&& f) {
  with_head_dim(dim, f, BuiltHeadDims());
}

// Head sizes with which keys and values may be in 8 bits.
constexpr bool takes_eight_bit(std::int32_t head_dim) {
  return head_dim == 64 || head_dim == 128;
}

}  // namespace mneme

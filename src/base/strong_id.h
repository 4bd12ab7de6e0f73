// Integer ids of distinct types: a page's id is not a position, a sequence is not a request.
//
//   using BlockId = StrongId<struct BlockIdTag>;
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace mneme {

template <typename Tag, typename T = std::int32_t>
struct StrongId {
  using value_type = T;
  T value = T{-1};  // -1: none

  constexpr StrongId() = default;
  constexpr explicit StrongId(T v) : value(v) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr auto operator<=>(const StrongId&) const = default;  // NOLINT(modernize-use-nullptr)
};

}  // namespace mneme

template <typename Tag, typename T>
struct std::hash<mneme::StrongId<Tag, T>> {
  std::size_t operator()(mneme::StrongId<Tag, T> id) const noexcept { return std::hash<T>{}(id.value); }
};

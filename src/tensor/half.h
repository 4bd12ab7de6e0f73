// bf16 and f16 as scalar values: conversion to and from float, round to nearest even. Kernels convert in vectors; this
// form is the specification.
#pragma once

#include <bit>
#include <cstdint>

namespace mneme {

struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  explicit bf16(float f) {
    const auto u = std::bit_cast<std::uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);  // a NaN stays one, made quiet
    else
      bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  explicit f16(float f);
  operator float() const;
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

}  // namespace mneme

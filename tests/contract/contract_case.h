// Cases of the contracts: a method with overrides, and query heads per KV head.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <string>
#include <tuple>

#include "src/recipes/compile.h"

namespace mneme {

struct Method {
  const char* name;
  const char* overrides;
};

using ContractCase = std::tuple<Method, std::int32_t>;

class MethodContract : public ::testing::TestWithParam<ContractCase> {
 protected:
  const Method& method() const { return std::get<0>(GetParam()); }
  // Two KV heads; keys and values in bf16 for even groups, in f16 for odd ones.
  MethodShape shape_of(std::int32_t n_layers, std::int32_t head_dim) const {
    const std::int32_t group = std::get<1>(GetParam());
    return {.n_layers = n_layers,
            .n_heads = 2 * group,
            .n_kv_heads = 2,
            .head_dim = head_dim,
            .kv_dtype = group % 2 == 0 ? DType::kBF16 : DType::kF16};
  }
};

// Query heads per KV head. Under AddressSanitizer two of them: the release build has all, in a third of the time each.
inline auto tested_groups() {
#if defined(__SANITIZE_ADDRESS__)
  return ::testing::Values(4, 7);
#else
  return ::testing::Values(1, 4, 5, 7, 8);
#endif
}

template <std::size_t kN>
auto with_groups(const Method (&methods)[kN]) {
  return ::testing::Combine(::testing::ValuesIn(methods), tested_groups());
}

// "quest_pool_none_dense_none_G4"
inline std::string case_name(const ::testing::TestParamInfo<ContractCase>& test) {
  const auto& [method, group] = test.param;
  std::string name = fmt::format("{}_{}_G{}", method.name, method.overrides, group);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

}  // namespace mneme

// Cases of the contracts: a method with overrides, and query heads per KV head.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "src/recipes/compile.h"
#include "tests/sanitized.h"

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

// Query heads per KV head.
inline constexpr std::int32_t kGroups[] = {1, 4, 5, 7, 8};

// Every case with every group; under sanitizers, which take three times as long, with one of them each, in turn.
template <typename T, std::size_t kN>
auto with_groups(const T (&cases)[kN]) {
  std::vector<std::tuple<T, std::int32_t>> all;
  for (std::size_t i = 0; i < kN; ++i)
    for (std::size_t g = 0; g < std::size(kGroups); ++g)
      if (!kSanitized || g == i % std::size(kGroups)) all.emplace_back(cases[i], kGroups[g]);
  return ::testing::ValuesIn(all);
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

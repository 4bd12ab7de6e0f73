// exp and log of vectors against float64, over floats of every size.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/ops/simd/vec_math_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/vec_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Requires  n a multiple of 16.
void exp_all(const float* x, std::size_t n, float* y) {
  const hn::CappedTag<float, 16> d;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(vec_exp(d, hn::LoadU(d, x + i)), d, y + i);
}

void log_all(const float* x, std::size_t n, float* y) {
  const hn::CappedTag<float, 16> d;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(vec_log(d, hn::LoadU(d, x + i)), d, y + i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "tests/ops/simd/each_target.h"

namespace mneme {
namespace {

HWY_EXPORT(exp_all);
HWY_EXPORT(log_all);

constexpr float kInf = std::numeric_limits<float>::infinity();

// Every 4096th float of both signs, and the functions' thresholds.
std::vector<float> floats() {
  std::vector<float> v{0.0f, -0.0f, 1.0f, kInf, -kInf, 88.7228f, 88.73f, -87.3365f, -87.34f, 0.70710678f, 1.41421356f};
  for (std::uint64_t bits = 77; bits <= 0xffffffffu; bits += 4096) {
    const auto word = static_cast<std::uint32_t>(bits);
    float x;
    std::memcpy(&x, &word, sizeof(x));
    v.push_back(x);
  }
  for (float x = 0.9f; x < 1.1f; x += 1e-5f) v.push_back(x);
  v.resize((v.size() + 15) / 16 * 16, 1.0f);
  return v;
}

double ulps(float got, double exact) {
  const auto nearest = static_cast<float>(std::fabs(exact));
  const double place = std::nextafter(nearest, kInf) - double{nearest};
  return std::fabs(got - exact) / place;
}

TEST(VecMath, ExpIsWithinTwoUlp) {
  const auto x = floats();
  std::vector<float> y(x.size());
  each_target([&] {
    HWY_DYNAMIC_DISPATCH(exp_all)(x.data(), x.size(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(double{x[i]});
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(y[i]));
      } else if (exact < (std::numeric_limits<float>::min())) {
        ASSERT_EQ(y[i], 0.0f) << x[i];
      } else if (exact > (std::numeric_limits<float>::max())) {
        ASSERT_EQ(y[i], kInf) << x[i];
      } else {
        ASSERT_LE(ulps(y[i], exact), 2.0) << x[i];
      }
    }
  });
}

TEST(VecMath, LogIsWithinTwoUlp) {
  const auto x = floats();
  std::vector<float> y(x.size());
  each_target([&] {
    HWY_DYNAMIC_DISPATCH(log_all)(x.data(), x.size(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]) || x[i] <= -std::numeric_limits<float>::min()) {
        ASSERT_TRUE(std::isnan(y[i])) << x[i];
      } else if (x[i] == 0.0f || (x[i] > 0.0f && x[i] < std::numeric_limits<float>::min())) {
        ASSERT_EQ(y[i], -kInf) << x[i];
      } else if (x[i] == kInf) {
        ASSERT_EQ(y[i], kInf);
      } else if (x[i] == 1.0f) {
        ASSERT_EQ(y[i], 0.0f);
      } else if (x[i] > 0.0f) {
        ASSERT_LE(ulps(y[i], std::log(static_cast<double>(x[i]))), 2.0) << x[i];
      }
    }
  });
}

}  // namespace
}  // namespace mneme
#endif

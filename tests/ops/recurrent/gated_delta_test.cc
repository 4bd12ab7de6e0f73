// Gated DeltaNet on the CPU against its plain form in f64.
#include "src/ops/recurrent/gated_delta.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "src/base/rng.h"

namespace mneme {
namespace {

// Everything that the rows of a sequence read and write, random.
struct Sequence {
  std::vector<float> x, beta, alpha, out, inputs, state;
  std::int64_t n, position;

  Sequence(const DeltaShape& s, std::int64_t rows, std::int64_t first, std::uint64_t seed) : n(rows), position(first) {
    Rng rng(seed);
    const auto fill = [&](std::vector<float>& to, std::int64_t size, double scale) {
      for (std::int64_t i = 0; i < size; ++i) to.push_back(static_cast<float>(scale * rng.normal()));
    };
    fill(x, n * s.channels(), 1.0);
    fill(beta, n * s.n_v_heads, 1.0);
    fill(alpha, n * s.n_v_heads, 1.0);
    fill(inputs, s.input_floats(), 1.0);
    fill(state, s.state_floats(), 0.3);
    out.resize(static_cast<std::size_t>(n * s.value_width()));
  }
  GatedDeltaRows rows(std::int64_t begin, std::int64_t end, const DeltaShape& s) {
    return {.n = end - begin,
            .position = position + begin,
            .x = x.data() + begin * s.channels(),
            .beta = beta.data() + begin * s.n_v_heads,
            .alpha = alpha.data() + begin * s.n_v_heads,
            .out = out.data() + begin * s.value_width(),
            .inputs = inputs.data(),
            .state = state.data()};
  }
};

struct Parameters {
  std::vector<float> conv, a, dt;
  Parameters(const DeltaShape& s, double decay) {
    Rng rng(17);
    for (std::int64_t i = 0; i < s.channels() * s.taps; ++i) conv.push_back(static_cast<float>(0.5 * rng.normal()));
    for (std::int64_t i = 0; i < s.n_v_heads; ++i) {
      a.push_back(static_cast<float>(-decay * std::exp(0.5 * rng.normal())));
      dt.push_back(static_cast<float>(0.7 * rng.normal()));
    }
  }
  DeltaParameters get() const { return {.conv = conv.data(), .a = a.data(), .dt = dt.data()}; }
};

double error(const std::vector<float>& found, const std::vector<float>& expected) {
  double sum = 0.0, of = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    sum += std::pow(double{found[i]} - double{expected[i]}, 2);
    of += std::pow(double{expected[i]}, 2);
  }
  return of == 0.0 ? std::sqrt(sum) : std::sqrt(sum / of);
}

// RMS error by the RMS of what is right; f32's own is 1e-7, and sums of 128 products make some more of it.
constexpr double kTolerance = 4e-6;

void expect_same(const Sequence& found, const Sequence& expected, double tolerance, const std::string& what) {
  EXPECT_LE(error(found.out, expected.out), tolerance) << what;
  EXPECT_LE(error(found.state, expected.state), tolerance) << what;
  EXPECT_LE(error(found.inputs, expected.inputs), 0.0) << what;
}

class GatedDelta : public testing::Test {
 protected:
  ThreadPool threads{2};
  CpuContext fast{.pool = &threads}, fixed{.pool = &threads, .rounding = Rounding::kFixed};

  void compare(const DeltaShape& s, std::int64_t n, std::int64_t position, double decay = 0.3,
               double tolerance = kTolerance) {
    const Parameters parameters(s, decay);
    Sequence truth(s, n, position, 3);
    const Sequence before = truth;
    gated_delta_ref(std::vector{truth.rows(0, n, s)}, parameters.get(), s);
    for (const CpuContext& context : {fast, fixed}) {
      Sequence found = before;
      gated_delta_cpu(std::vector{found.rows(0, n, s)}, parameters.get(), s, context);
      expect_same(found, truth, tolerance, std::to_string(n) + " rows at " + std::to_string(position));
    }
  }
};

// Sizes that fill no vector, and those of published models.
constexpr DeltaShape kOdd = {.n_k_heads = 2, .n_v_heads = 6, .d_k = 13, .d_v = 21, .taps = 4};
constexpr DeltaShape kPublished = {.n_k_heads = 1, .n_v_heads = 2, .d_k = 128, .d_v = 128, .taps = 4};

TEST_F(GatedDelta, IsThePlainForm) {
  for (const DeltaShape& s : {kOdd, kPublished})
    for (const std::int64_t n : {0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 200})
      for (const std::int64_t position : {0, 5, 31, 32, 100}) compare(s, n, position);
}

TEST_F(GatedDelta, TakesEveryNumberOfTapsAndHeads) {
  for (const std::int64_t taps : {2, 3, 5, 16}) compare({2, 2, 8, 8, taps}, 40, 0);
  for (const std::int64_t v_heads : {3, 6, 12}) compare({3, v_heads, 16, 8, 4}, 40, 3);
  compare({1, 1, 1, 1, 2}, 40, 0, 0.3, 4 * kTolerance);  // one number: nothing averages its error
  compare({1, 1, 256, 256, 4}, 40, 0);
}

TEST_F(GatedDelta, ByHand) {
  // One channel each of q, k, v; the convolution is its newest input, and silu(x) / |silu(x)| is 1 but for eps.
  const DeltaShape s{.n_k_heads = 1, .n_v_heads = 1, .d_k = 1, .d_v = 1, .taps = 2};
  const std::vector<float> conv = {0, 1, 0, 1, 0, 1}, a = {-1.0f}, dt = {0.0f};
  std::vector<float> x = {30, 30, 3}, beta = {0}, alpha = {0}, out(1), inputs(3), state = {4};
  const GatedDeltaRows rows{1, 0, x.data(), beta.data(), alpha.data(), out.data(), inputs.data(), state.data()};
  gated_delta_ref(std::vector{rows}, {conv.data(), a.data(), dt.data()}, s);
  // g = -ln 2, b = 1/2: S = 4/2 = 2, then 2 + (silu(3) - 2) / 2.
  const double silu = 3.0 / (1.0 + std::exp(-3.0));
  EXPECT_NEAR(out[0], 2.0 + (silu - 2.0) / 2.0, 1e-6);
  EXPECT_NEAR(state[0], out[0], 1e-6);
  EXPECT_EQ(inputs, (std::vector<float>{30, 30, 3}));
}

TEST_F(GatedDelta, TiledHeadsAreTheOthersInAnotherOrder) {
  DeltaShape s = kOdd;
  Parameters by_key(s, 0.3), tiled = by_key;
  Sequence one(s, 40, 0, 3), other = one;
  gated_delta_cpu(std::vector{one.rows(0, 40, s)}, by_key.get(), s, fast);
  s.tiled = true;
  const auto order = [&](std::int64_t i) { return i % s.n_k_heads * 3 + i / s.n_k_heads; };
  const std::int64_t first = 2 * s.key_width();
  for (std::int64_t h = 0; h < s.n_v_heads; ++h) {
    const std::int64_t from = order(h);
    tiled.a[static_cast<std::size_t>(h)] = by_key.a[static_cast<std::size_t>(from)];
    tiled.dt[static_cast<std::size_t>(h)] = by_key.dt[static_cast<std::size_t>(from)];
    const Sequence start(s, 40, 0, 3);
    const auto copy = [&](const std::vector<float>& source, std::vector<float>& to, std::int64_t stride,
                          std::int64_t at, std::int64_t width) {
      for (std::int64_t r = 0; (r + 1) * stride <= std::ssize(source); ++r)
        std::copy_n(source.begin() + r * stride + at + from * width, width, to.begin() + r * stride + at + h * width);
    };
    copy(start.x, other.x, s.channels(), first, s.d_v);
    copy(start.inputs, other.inputs, s.channels(), first, s.d_v);
    copy(start.beta, other.beta, s.n_v_heads, 0, 1);
    copy(start.alpha, other.alpha, s.n_v_heads, 0, 1);
    copy(start.state, other.state, s.state_floats(), 0, s.d_k * s.d_v);
    copy(by_key.conv, tiled.conv, std::ssize(by_key.conv), first * s.taps, s.d_v * s.taps);
  }
  gated_delta_cpu(std::vector{other.rows(0, 40, s)}, tiled.get(), s, fast);
  for (std::int64_t r = 0; r < 40; ++r)
    for (std::int64_t h = 0; h < s.n_v_heads; ++h)
      for (std::int64_t j = 0; j < s.d_v; ++j)
        EXPECT_EQ(other.out[static_cast<std::size_t>(r * s.value_width() + h * s.d_v + j)],
                  one.out[static_cast<std::size_t>(r * s.value_width() + order(h) * s.d_v + j)]);
}

// Fast, slow and no decay; beta at its ends. A form with e^{-G} overflows here.
TEST_F(GatedDelta, ExtremeGates) {
  for (const DeltaShape& s : {kOdd, kPublished})
    for (const double decay : {0.0, 1e-6, 6.0, 40.0, 1e9}) compare(s, 100, 0, decay);
  const Parameters parameters(kOdd, 0.3);
  for (const float alpha : {-1e9f, 0.0f, 1e9f})
    for (const float beta : {-1e9f, 1e9f}) {
      Sequence truth(kOdd, 70, 0, 5);
      for (std::size_t i = 0; i < truth.alpha.size(); i += 3) truth.alpha[i] = alpha, truth.beta[i] = beta;
      Sequence found = truth;
      gated_delta_ref(std::vector{truth.rows(0, 70, kOdd)}, parameters.get(), kOdd);
      gated_delta_cpu(std::vector{found.rows(0, 70, kOdd)}, parameters.get(), kOdd, fast);
      expect_same(found, truth, kTolerance, std::to_string(alpha) + ", " + std::to_string(beta));
    }
}

// Keys 90 % alike and a slow decay: an inverse by doubling is wrong by 8e-2 at 32 rows and NaN at 64.
TEST_F(GatedDelta, KeysThatAreAlike) {
  const DeltaShape& s = kPublished;
  Sequence truth(s, 128, 0, 7);
  for (std::int64_t r = 1; r < 128; ++r)
    for (std::int64_t c = s.key_width(); c < 2 * s.key_width(); ++c) {
      float& k = truth.x[static_cast<std::size_t>(r * s.channels() + c)];
      k = 0.9f * truth.x[static_cast<std::size_t>(c)] + 0.1f * k;
    }
  std::fill(truth.beta.begin(), truth.beta.end(), 7.0f);
  const Parameters parameters(s, 1e-3);
  Sequence found = truth;
  gated_delta_ref(std::vector{truth.rows(0, 128, s)}, parameters.get(), s);
  gated_delta_cpu(std::vector{found.rows(0, 128, s)}, parameters.get(), s, fast);
  expect_same(found, truth, 2 * kTolerance, "keys alike");
}

TEST_F(GatedDelta, GivesTheSameBitsHoweverItIsCut) {
  const DeltaShape& s = kOdd;
  const Parameters parameters(s, 0.3);
  const Sequence start(s, 150, 10, 3);
  Sequence whole = start;
  gated_delta_cpu(std::vector{whole.rows(0, 150, s)}, parameters.get(), s, fixed);
  for (const CpuContext& context : {fast, fixed})
    for (const std::int64_t step : {150, 64, 7, 1}) {
      Sequence cut = start;
      for (std::int64_t at = 0; at < 150; at += step)
        gated_delta_cpu(std::vector{cut.rows(at, std::min<std::int64_t>(at + step, 150), s)}, parameters.get(), s,
                        context);
      EXPECT_EQ(cut.out, whole.out) << step;
      EXPECT_EQ(cut.state, whole.state) << step;
      EXPECT_EQ(cut.inputs, whole.inputs) << step;
    }
}

TEST_F(GatedDelta, SequencesDoNotMeet) {
  const DeltaShape& s = kOdd;
  const Parameters parameters(s, 0.3);
  std::vector<Sequence> alone, together;
  std::vector<GatedDeltaRows> rows;
  for (const std::int64_t n : {1, 40, 0, 3}) {
    alone.emplace_back(s, n, n, 11 + n);
    together.push_back(alone.back());
  }
  for (Sequence& q : alone) gated_delta_cpu(std::vector{q.rows(0, q.n, s)}, parameters.get(), s, fast);
  for (Sequence& q : together) rows.push_back(q.rows(0, q.n, s));
  gated_delta_cpu(rows, parameters.get(), s, fast);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(together[i].out, alone[i].out);
    EXPECT_EQ(together[i].state, alone[i].state);
  }
}

TEST_F(GatedDelta, NanStaysBehindItsRow) {
  const DeltaShape& s = kOdd;
  const Parameters parameters(s, 0.3);
  Sequence q(s, 80, 0, 3);
  q.alpha[static_cast<std::size_t>(40 * s.n_v_heads)] = std::numeric_limits<float>::quiet_NaN();
  gated_delta_cpu(std::vector{q.rows(0, 80, s)}, parameters.get(), s, fast);
  for (std::int64_t r = 0; r < 80; ++r) {
    const bool nan = std::isnan(q.out[static_cast<std::size_t>(r * s.value_width())]);
    EXPECT_EQ(nan, r >= 40) << r;
  }
  EXPECT_FALSE(std::isnan(q.out[static_cast<std::size_t>(79 * s.value_width() + s.d_v)]));  // another head
}

}  // namespace
}  // namespace mneme

#include <cmath>
#include <vector>

#include "src/ops/recurrent/gated_delta.h"

namespace mneme {
namespace {

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// The convolution of all rows, [n, channels]; `inputs` becomes the last taps - 1 of them.
std::vector<double> convolved(const GatedDeltaRows& r, const float* weight, const DeltaShape& s) {
  const std::int64_t channels = s.channels(), before = s.taps - 1;
  std::vector<float> all(r.inputs, r.inputs + before * channels);
  all.insert(all.end(), r.x, r.x + r.n * channels);
  std::vector<double> out(static_cast<std::size_t>(r.n * channels));
  for (std::int64_t t = 0; t < r.n; ++t)
    for (std::int64_t c = 0; c < channels; ++c) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < s.taps; ++i)
        sum += double{weight[c * s.taps + i]} * double{all[static_cast<std::size_t>((t + i) * channels + c)]};
      out[static_cast<std::size_t>(t * channels + c)] = sum * sigmoid(sum);
    }
  for (std::int64_t i = 0; i < before * channels; ++i) r.inputs[i] = all[static_cast<std::size_t>(r.n * channels + i)];
  return out;
}

std::vector<double> unit(const double* x, std::int64_t n) {
  double squares = 1e-6;
  for (std::int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  std::vector<double> out(x, x + n);
  for (double& v : out) v /= std::sqrt(squares);
  return out;
}

}  // namespace

void gated_delta_ref(std::span<const GatedDeltaRows> sequences, const DeltaParameters& p, const DeltaShape& s) {
  for (const GatedDeltaRows& r : sequences) {
    const std::vector<double> c = convolved(r, p.conv, s);
    for (std::int64_t head = 0; head < s.n_v_heads; ++head) {
      float* stored = r.state + head * s.d_k * s.d_v;
      std::vector<double> state(stored, stored + s.d_k * s.d_v);
      for (std::int64_t t = 0; t < r.n; ++t) {
        const double* row = c.data() + t * s.channels();
        std::vector<double> q = unit(row + s.key_head(head) * s.d_k, s.d_k);
        for (double& v : q) v /= std::sqrt(static_cast<double>(s.d_k));
        const std::vector<double> k = unit(row + s.key_width() + s.key_head(head) * s.d_k, s.d_k);
        const double* v = row + 2 * s.key_width() + head * s.d_v;
        const double a = double{r.alpha[t * s.n_v_heads + head]} + double{p.dt[head]};
        const double softplus = a > 0 ? a + std::log1p(std::exp(-a)) : std::log1p(std::exp(a));
        const double decay = std::exp(double{p.a[head]} * softplus);
        const double b = sigmoid(double{r.beta[t * s.n_v_heads + head]});
        for (double& x : state) x *= decay;
        for (std::int64_t j = 0; j < s.d_v; ++j) {
          double read = 0.0, out = 0.0;
          for (std::int64_t i = 0; i < s.d_k; ++i)
            read += state[static_cast<std::size_t>(i * s.d_v + j)] * k[static_cast<std::size_t>(i)];
          for (std::int64_t i = 0; i < s.d_k; ++i) {
            double& x = state[static_cast<std::size_t>(i * s.d_v + j)];
            x += k[static_cast<std::size_t>(i)] * b * (v[j] - read);
            out += x * q[static_cast<std::size_t>(i)];
          }
          r.out[t * s.value_width() + head * s.d_v + j] = static_cast<float>(out);
        }
      }
      for (std::size_t i = 0; i < state.size(); ++i) stored[i] = static_cast<float>(state[i]);
    }
  }
}

}  // namespace mneme

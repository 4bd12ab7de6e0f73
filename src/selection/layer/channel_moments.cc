#include "src/selection/layer/channel_moments.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/ratio.h"

namespace mneme {

double ChannelMoments::variance(std::int64_t c) const {
  return count_ < 2 ? 0.0 : ratio(m2_[c], count_ - 1);
}

void ChannelMoments::set(std::int64_t count, std::span<const double> means, std::span<const double> squares) {
  MNEME_CHECK(means.size() == mean_.size() && squares.size() == mean_.size(), "{} channels, there are {}", means.size(),
              mean_.size());
  count_ = count;
  std::copy(means.begin(), means.end(), mean_.begin());
  std::copy(squares.begin(), squares.end(), m2_.begin());
}

void ChannelMoments::add(std::int64_t n, std::span<const float> mean, std::span<const float> m2) {
  MNEME_CHECK(mean.size() == mean_.size() && m2.size() == mean_.size(), "{} channels, there are {}", mean.size(),
              mean_.size());
  if (n == 0) return;
  const auto a = real(count_), b = real(n), both = a + b;
  for (std::size_t c = 0; c < mean_.size(); ++c) {
    const double delta = mean[c] - mean_[c];
    mean_[c] += delta * (b / both);
    m2_[c] += m2[c] + delta * delta * (a * b / both);
  }
  count_ += n;
}

void ChannelMoments::bias_form(std::span<float> centre, std::span<float> weight) const {
  double sum = 0;
  for (std::size_t c = 0; c < mean_.size(); ++c) sum += variance(c);
  const double floor = mean_.empty() ? 0.0 : ratio(sum, mean_.size()) / 100;
  for (std::size_t c = 0; c < mean_.size(); ++c) {
    centre[c] = static_cast<float>(mean_[c]);
    weight[c] = floor > 0 ? static_cast<float>(1.0 / (variance(c) + floor)) : 0.0f;
  }
}

void ChannelMoments::write(ByteWriter& out) const {
  out.put(count_);
  out.put_all(mean_);
  out.put_all(m2_);
}

void ChannelMoments::read(ByteReader& in, std::int64_t most_rows) {
  count_ = in.read<std::int64_t>("rows of moments");
  if (count_ < 0 || count_ > most_rows)
    fail(ErrorKind::kFormat, "moments of {} rows, expected 0 to {}", count_, most_rows);
  in.fill(std::span(mean_), "means of queries");
  in.fill(std::span(m2_), "squared deviations of queries");
}

}  // namespace mneme

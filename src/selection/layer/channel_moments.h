// Running mean and variance of every channel over all rows that a layer of a sequence has seen.
// Source  merging of batches: Chan, Golub and LeVeque (1979).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/formats/bytes/byte_reader.h"
#include "src/formats/bytes/byte_writer.h"

namespace mneme {

class ChannelMoments {
 public:
  ChannelMoments() = default;
  explicit ChannelMoments(std::int64_t channels) : mean_(channels), m2_(channels) {}

  std::int64_t count() const { return count_; }
  double mean(std::int64_t c) const { return mean_[c]; }
  // Unbiased; 0 before the second row.
  double variance(std::int64_t c) const;

  std::span<const double> means() const { return mean_; }
  std::span<const double> squares() const { return m2_; }  // sums of squared deviations
  // Replaces the state with moments computed elsewhere.
  void set(std::int64_t count, std::span<const double> means, std::span<const double> squares);

  // Adds n rows with these means and sums of squared deviations, [channels] each.
  void add(std::int64_t n, std::span<const float> mean, std::span<const float> m2);
  // Terms of a row's bias: centre[c] = mean, weight[c] = 1 / (variance + 1 % of the mean variance); all weights are 0
  // where no channel varies.
  void bias_form(std::span<float> centre, std::span<float> weight) const;

  // For saved sessions. Errors  kFormat: unexpected end of data, or more than `most_rows` rows.
  void write(ByteWriter& out) const;
  void read(ByteReader& in, std::int64_t most_rows);

  std::size_t bytes() const { return (mean_.capacity() + m2_.capacity()) * sizeof(double); }

 private:
  std::int64_t count_ = 0;
  std::vector<double> mean_, m2_;
};

}  // namespace mneme

// Time of a forward pass by operation: each interval between two laps is charged to the operation that ended.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "src/base/underlying.h"

namespace mneme {

enum class Op : std::uint8_t { kProducts, kAttention, kPointwise, kHead, kOther };
inline constexpr std::array kOps = {Op::kProducts, Op::kAttention, Op::kPointwise, Op::kHead, Op::kOther};
// "GEMM" (those of the layers), "attention" (including the store of keys and values), "norms, rope, swiglu", "head"
// (including its norm), "other" (rows, tables, embedding).
std::string_view op_name(Op op);

class OpTimer {
 public:
  using Clock = std::chrono::steady_clock;
  struct Span {
    Op op;
    std::int32_t layer;  // -1: none
    Clock::time_point begin, end;
  };

  explicit OpTimer(bool keep_spans = false) : keep_spans_(keep_spans) {}

  // Starts timing; resets sums and spans.
  void start();
  // Charges the time since the last call (or start()) to `op`.
  void lap(Op op, std::int32_t layer);

  double seconds(Op op) const { return seconds_[underlying(op)]; }
  const std::vector<Span>& spans() const { return spans_; }

 private:
  bool keep_spans_;
  Clock::time_point last_;
  std::array<double, kOps.size()> seconds_{};
  std::vector<Span> spans_;
};

}  // namespace mneme

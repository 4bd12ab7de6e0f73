#include "src/model/cuda/drops/decode_mass.h"

#include <algorithm>

namespace mneme {
namespace {

constexpr std::int32_t kSlotStep = 1024;  // slots
constexpr const char* kMassOfTokens = "attention that tokens received";

}  // namespace

bool CudaDecodeMass::prepare(std::int32_t n_rows, std::int32_t slots, bool received, const Stream& stream) {
  const bool more = n_rows > n_rows_ || slots > stride_, sums = received && received_.size() == 0;
  if (!more && !sums) return false;
  const std::int32_t rows = std::max(n_rows, n_rows_);
  const std::int64_t stride = slots > stride_ ? (slots + slots / 4) / kSlotStep * kSlotStep + kSlotStep : stride_;
  stream.synchronize();
  if (more) {
    move(given_, rows, stride, stream);
    if (received_.size() > 0) move(received_, rows, stride, stream);
    n_rows_ = rows, stride_ = stride;
  }
  if (sums) received_ = DeviceBuffer(given_.size(), kMassOfTokens);
  return true;
}

void CudaDecodeMass::move(DeviceBuffer& buffer, std::int32_t n_rows, std::int64_t stride, const Stream& stream) const {
  const auto pitch = [](std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); };
  DeviceBuffer larger(pitch(n_rows * n_heads_ * stride), kMassOfTokens);
  if (buffer.size() > 0)
    copy_rows(larger.data(), pitch(stride), buffer.data(), pitch(stride_), pitch(stride_),
              static_cast<std::size_t>(n_rows_ * n_heads_), stream);
  stream.synchronize();
  buffer = std::move(larger);
}

}  // namespace mneme

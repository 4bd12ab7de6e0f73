#include <algorithm>

#include "apps/bench/device_rates.h"
#include "src/base/backend.h"
#include "src/cuda/bandwidth_cuda.h"
#include "src/cuda/device.h"
#include "src/cuda/memory.h"

namespace mneme {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 30, kPinned = std::size_t{256} << 20;
constexpr int kPasses = 6;

template <typename F>
double rate_of(const Stream& stream, std::size_t bytes, F&& work) {
  const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
  double best = 0;
  for (int i = 0; i < kPasses; ++i) {
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    best = std::max(best, static_cast<double>(bytes) / end.seconds_since(begin));
  }
  return best;
}

DeviceRates measure_device_cuda(int device) {
  use_device(device);
  const std::size_t bytes = std::min(kMost, device_info(device).free_bytes / 2) / kPinned * kPinned;
  const Stream stream = Stream::make();
  const DeviceBuffer there(std::max(bytes, kPinned), "memory to measure");
  const PinnedBuffer here(kPinned);
  DeviceRates rates;
  rates.read = rate_of(stream, there.size(),
                       [&] { read_all_cuda(there.data(), there.size(), nullptr, {.stream = stream.get()}); });
  rates.host_to_device = rate_of(stream, kPinned, [&] { copy_bytes(there.data(), here.data(), kPinned, stream); });
  rates.device_to_host = rate_of(stream, kPinned, [&] { copy_bytes(here.data(), there.data(), kPinned, stream); });
  return rates;
}

}  // namespace

MNEME_REGISTER_BACKEND(rates_cuda, DeviceMeter, {.rates = &measure_device_cuda});

}  // namespace mneme
